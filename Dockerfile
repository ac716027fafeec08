# What programs run in with SANDBOX_TYPE=docker. `fumehood image build` makes it; from a clone, docker build . does too.
# Where there is no registry, BASE is an image with python3 in it, and the wheels (pip's own too) lie in docker/wheels.
# The files beneath src that are named here are the ones that `fumehood image build` sends.
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS libraries
ARG PIP_NO_INDEX
COPY docker/requirements.txt docker/wheels*/* /wheels/
# Debian's python3 comes without pip, and a wheel of pip runs as it is. Tests of the libraries are a third of them.
RUN set -e; mkdir /installed; \
    for wheel in /wheels/pip-*.whl; do test ! -e "$wheel" || export PYTHONPATH="$wheel"; done; \
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-cache-dir --disable-pip-version-check \
      --break-system-packages --no-warn-script-location --only-binary :all: --no-compile \
      --find-links /wheels --root /installed --requirement /wheels/requirements.txt; \
    find /installed -type d -name tests -prune -exec rm -r {} +; \
    python3 -m compileall -q /installed -s /installed

FROM ${BASE}
COPY --from=libraries /installed/ /
RUN set -e; echo 'sandbox:x:1000:' >> /etc/group; \
    echo 'sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh' >> /etc/passwd; \
    mkdir -p /home/sandbox /workspace /mnt /opt/fumehood; \
    command -v python > /dev/null || ln -s "$(command -v python3)" /usr/local/bin/python; \
    ln -sfn /workspace /mnt/data; chown 1000:1000 /home/sandbox /workspace; chmod 700 /home/sandbox /workspace; \
    find / -xdev -perm /6000 -type f -exec chmod a-s {} +; \
    MPLCONFIGDIR=/opt/fumehood/matplotlib \
      python3 -c 'import importlib.util as u; u.find_spec("matplotlib") and __import__("matplotlib.font_manager")'

# The guest, and what of the engine it shuts itself in with. It is read by path: programs do not find it by name.
COPY src/fumehood/__init__.py /opt/fumehood/fumehood/
COPY src/fumehood/guest/*.py /opt/fumehood/fumehood/guest/
COPY src/fumehood/engine/__init__.py src/fumehood/engine/_syscalls.py src/fumehood/engine/_syscall_numbers.py \
     src/fumehood/engine/landlock.py src/fumehood/engine/seccomp.py /opt/fumehood/fumehood/engine/
RUN python3 -m compileall -q /opt/fumehood

# The protocol is that of guest/wire.py: with any other, this image is of no use to the host.
LABEL io.fumehood.version=0.1.0 io.fumehood.protocol=1
ENV HOME=/home/sandbox LANG=C.UTF-8
USER 1000:1000
WORKDIR /workspace
CMD ["python3"]
