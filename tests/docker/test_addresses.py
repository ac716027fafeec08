"""Where an engine is, and every way to reach one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_api import containers_of

from docker_engine import Daemon
from fumehood import BackendUnavailable, ConfigurationError, get_sandbox, open_session
from fumehood.backends.docker import address
from fumehood.backends.docker.tls import Tls
from fumehood.config import Settings
from support import HANG_S, wait_until


def make_context(directory: Path, name: str, **endpoint: Any) -> Path:
    """As `docker context create` would; where its certificates go."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = directory / "contexts" / "meta" / digest / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": name, "Endpoints": {"docker": endpoint}}))
    certificates = directory / "contexts" / "tls" / digest / "docker"
    certificates.mkdir(parents=True)
    return certificates


@pytest.fixture
def no_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without an engine."""
    for name in ("_DEFAULT", "_PODMAN"):
        monkeypatch.setattr(address, name, str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


# ---- which


def test_the_engine_of_a_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    make_context(tmp_path, "mine", Host="unix:///run/mine.sock")
    assert address.find(Settings(docker_context="mine")).socket == "/run/mine.sock"
    (tmp_path / "config.json").write_text('{"currentContext": "mine"}')
    assert address.find(Settings()).socket == "/run/mine.sock"
    assert address.find(Settings(docker_host="tcp://10.0.0.1")).url == "http://10.0.0.1:2375"
    with pytest.raises(ConfigurationError, match="docker context ls"):
        address.find(Settings(docker_context="other"))


def test_the_default_context_is_the_usual_socket(no_sockets: Path) -> None:
    (no_sockets / ".docker").mkdir()
    (no_sockets / ".docker/config.json").write_text('{"currentContext": "mine"}')
    assert address.find(Settings(docker_context="default")).socket == address._DEFAULT


def test_a_context_brings_its_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    certificates = make_context(tmp_path, "far", Host="tcp://far", SkipTLSVerify=False)
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (certificates / name).touch()
    found = address.find(Settings(docker_context="far"))
    assert found.url == "https://far:2376"
    assert found.tls == Tls(*(f"{certificates}/{name}.pem" for name in ("ca", "cert", "key")))


def test_a_context_that_checks_nobody_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    make_context(tmp_path, "blind", Host="tcp://far:2376", SkipTLSVerify=True)
    with pytest.raises(ConfigurationError, match=r"ca\.pem"):
        address.find(Settings(docker_context="blind"))


def test_a_broken_context_store_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    make_context(tmp_path, "odd", Host=["x"])
    with pytest.raises(ConfigurationError, match="docker context ls"):
        address.find(Settings(docker_context="odd"))


@pytest.mark.parametrize(
    "place",
    [
        *("_DEFAULT", "run/docker.sock", "run/podman/podman.sock", ".docker/run/docker.sock"),
        *(".docker/desktop/docker.sock", "_PODMAN"),
    ],
)
def test_the_usual_sockets_are_found(no_sockets: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = no_sockets / place
    path.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(path.parent)  # the kernel takes only short names
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
        assert address.find(Settings()).socket == str(path)


def test_a_socket_that_may_be_opened_goes_before_one_that_may_not(
    no_sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may open all of them")
    monkeypatch.chdir(no_sockets)
    (no_sockets / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as closed, socket.socket(socket.AF_UNIX) as opened:
        closed.bind("_DEFAULT")
        os.chmod("_DEFAULT", 0)
        assert address.find(Settings()).socket == address._DEFAULT
        opened.bind("run/docker.sock")
        assert address.find(Settings()).socket == str(no_sockets / "run/docker.sock")


@pytest.mark.parametrize(
    "text", ["", "unix://", "unix://x/y", "ssh://", "npipe:////./pipe/x", "tcp://:1", "tcp://a:b", "fd://"]
)
def test_an_address_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"DOCKER_HOST.*unix:///path or tcp://host:port"):
        address.parse(text, "DOCKER_HOST")


def test_ssh_says_what_to_do_instead() -> None:
    with pytest.raises(ConfigurationError, match=r"ssh -nNT -L .* me@there.*DOCKER_HOST=unix://"):
        address.parse("ssh://me@there", "DOCKER_HOST")
    with pytest.raises(ConfigurationError, match=r'ssh -nNT -p 2222 -L "[^"]*:/run/x.sock" there'):
        address.parse("ssh://there:2222/run/x.sock", "DOCKER_HOST")


def test_certificates_that_are_missing_are_told(tmp_path: Path) -> None:
    far = Settings(docker_host="tcp://far", docker_tls_verify=True, docker_cert_path=str(tmp_path))
    with pytest.raises(ConfigurationError, match="DOCKER_CERT_PATH"):
        address.find(far)
    (tmp_path / "cert.pem").touch()
    with pytest.raises(ConfigurationError, match=r"key\.pem"):
        address.find(far)


# ---- over TCP and TLS, to the engine itself


@pytest.fixture
def tcp_host(docker: str) -> Iterator[str]:
    """The shared engine has no port: one of the loopback leads to its socket."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            while True:
                try:
                    near = stack.enter_context(server.accept()[0])
                except OSError:
                    return
                far = stack.enter_context(socket.socket(socket.AF_UNIX))
                far.connect(docker.removeprefix("unix://"))
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(source, target), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(HANG_S)


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def test_an_engine_over_tcp(docker: str, tcp_host: str) -> None:
    with get_sandbox(type="docker", docker_host=tcp_host, warm_cells=0) as sandbox:
        assert sandbox.execute("print(6 * 7)").stdout == "42\n"
    assert wait_until(lambda: containers_of(docker, os.getpid()) == [])


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Of an authority, an engine on the loopback and a user; `stranger` is of another authority."""
    for name in ("server", "user", "stranger"):
        (tmp_path / name).mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=tmp_path, timeout=HANG_S)

    for authority in ("ca", "other"):
        subject = ("-subj", f"/CN={authority}", "-addext", "keyUsage=critical,keyCertSign")
        openssl("req", "-x509", *key, *subject, "-keyout", f"{authority}.key", "-out", f"{authority}.pem")
    for name, authority, use in (
        ("server", "ca", "extendedKeyUsage=serverAuth\nsubjectAltName=IP:127.0.0.1"),
        ("user", "ca", "extendedKeyUsage=clientAuth"),
        ("stranger", "other", "extendedKeyUsage=clientAuth"),
    ):
        (tmp_path / f"{name}.ext").write_text(f"{use}\nauthorityKeyIdentifier=keyid\n")
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}/key.pem", "-out", f"{name}.csr")
        sign = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", *sign, "-extfile", f"{name}.ext", "-out", f"{name}/cert.pem")
        (tmp_path / name / "ca.pem").write_bytes((tmp_path / "ca.pem").read_bytes())
    return tmp_path


@pytest.fixture
def tls_host(daemon: Daemon, certificates: Path) -> Iterator[str]:
    own = certificates / "server"
    pems = (f"--tlscacert={own}/ca.pem", f"--tlscert={own}/cert.pem", f"--tlskey={own}/key.pem")
    daemon.stop()
    with socket.socket() as keeper:  # nobody else gets the port, and who asks for exactly this one may share it
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        port = keeper.getsockname()[1]
        daemon.start("--host", f"tcp://127.0.0.1:{port}", "--tlsverify", *pems)
    yield f"tcp://127.0.0.1:{port}"
    assert wait_until(lambda: containers_of(daemon.address, os.getpid()) == [])


def test_an_engine_over_tls(tls_host: str, certificates: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With certificates on both sides; and each way to get them wrong has its own message."""
    monkeypatch.setenv("DOCKER_HOST", tls_host)
    with pytest.raises(BackendUnavailable, match="DOCKER_TLS_VERIFY=1"):
        get_sandbox(type="docker").check()
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    with pytest.raises(BackendUnavailable, match=r"is not trusted .*DOCKER_CERT_PATH"):
        get_sandbox(type="docker").check()
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates / "stranger"))
    with pytest.raises(BackendUnavailable, match="wants a certificate that it trusts"):
        get_sandbox(type="docker").check()
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates / "user"))
    with get_sandbox(type="docker", require="sealed", warm_cells=1) as sandbox:
        assert [sandbox.execute("print(6 * 7)").stdout for _ in range(3)] == ["42\n"] * 3
        assert len(sandbox.execute("print('x' * 5_000_000)").stdout) > 5000
    with open_session(type="docker", warm_cells=0) as session:
        session.write("/workspace/a.txt", "text")
        assert session.run("x = open('a.txt').read()").exit_code == 0
        assert session.run("print(x)").stdout == "text\n"


def test_a_context_over_tls(tls_host: str, certificates: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = make_context(tmp_path / "docker", "far", Host=tls_host)
    for path in (certificates / "user").iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    with get_sandbox(type="docker", warm_cells=0) as sandbox:
        assert sandbox.execute("print(6 * 7)").stdout == "42\n"


def test_tls_to_an_engine_without_it_says_so(tcp_host: str, certificates: Path) -> None:
    user = str(certificates / "user")
    with get_sandbox(type="docker", docker_host=tcp_host, docker_tls_verify=True, docker_cert_path=user) as sandbox:
        with pytest.raises(BackendUnavailable, match="does not speak TLS"):
            sandbox.check()


def test_certificates_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("nothing of the kind")
    named = {"docker_host": "tcp://127.0.0.1:1", "docker_tls_verify": True, "docker_cert_path": str(tmp_path)}
    with pytest.raises(ConfigurationError, match=r"ca\.pem"), get_sandbox(type="docker", **named) as sandbox:
        sandbox.check()
