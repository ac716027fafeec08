"""At level confined a program changes modes and times of its own files, and of no other that its user has."""

from __future__ import annotations

import inspect
import json
import os
import secrets
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood import IsolationUnavailable, get_sandbox, open_session
from support import HANG_S

OUTSIDE = "EPERM, and no word of what is there"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Any]:
    with get_sandbox(isolation="confined", store_code="never", warm_cells=0, timeout_sec=HANG_S) as made:
        try:
            made.check()
        except IsolationUnavailable as missing:
            pytest.skip(str(missing))
        yield made


def attack(path: str) -> list[int | str]:
    """Every way to the metadata of one file; the errno of each, or that it won."""
    import os
    import threading

    def swap() -> None:
        while not done:
            for target in ("inside", path):
                os.symlink(target, "next")
                os.rename("next", "swapped")

    def race() -> None:
        for _ in range(300):
            try:
                os.chmod("swapped", 0o666)
            except PermissionError:
                pass
        if os.stat(path).st_mode & 0o777 == 0o600:
            raise PermissionError(0, "it was always the other one")

    open("inside", "w").close()
    os.symlink(path, "link")
    os.symlink(path, "swapped")
    directory = os.open(os.path.dirname(path), os.O_PATH)
    above = os.path.join(os.path.relpath("/"), path[1:])
    done = []
    swapping = threading.Thread(target=swap)
    ways = (
        lambda: os.chmod(path, 0o666),
        lambda: os.chmod(above, 0o666),
        lambda: os.chmod("link", 0o666),
        lambda: os.chmod(f"/proc/self/cwd/{above}", 0o666),
        lambda: os.chmod(os.path.basename(path), 0o666, dir_fd=directory),
        lambda: os.chmod(f"/proc/self/fd/{directory}/{os.path.basename(path)}", 0o666),
        lambda: os.utime(path, (1, 1)),
        lambda: os.utime(path, (1, 1), follow_symlinks=False),
        lambda: os.utime("link"),
        lambda: os.chown(path, os.getuid(), os.getgid()),
        lambda: os.chown(path, os.getuid(), os.getgid(), follow_symlinks=False),
        lambda: os.setxattr(path, "user.mark", b"1"),
        lambda: os.removexattr(path, "user.mark"),
        race,
    )
    swapping.start()
    found: list[int | str] = []
    for way in ways:
        try:
            way()
            found.append("won")
        except OSError as error:
            found.append(error.errno or 0)
    done.append(True)
    swapping.join()
    return found


def attacks(path: Path) -> str:
    return f"import json\n{inspect.getsource(attack)}\nprint(json.dumps(attack({str(path)!r})))"


def seen(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mode, status.st_uid, status.st_mtime_ns, status.st_ctime_ns


@pytest.fixture
def key(public_path: Path) -> Path:
    """One's own, that nobody else may read."""
    public_path.chmod(0o755)
    made = public_path / "key"
    made.write_text("secret", "utf-8")
    made.chmod(0o600)
    return made


def test_one_may_change_what_one_owns(key: Path, tmp_path: Path) -> None:
    """The control arm: every way wins, but for the race, which none has to."""
    done = subprocess.run([sys.executable, "-c", attacks(key)], cwd=tmp_path, capture_output=True, timeout=HANG_S)
    found = json.loads(done.stdout)
    assert found[0] == "won"
    assert set(found[:-1]) <= {"won", 95}, done.stderr  # not every file system has attributes


@pytest.mark.attack("files", control="test_one_may_change_what_one_owns", level="confined")
def test_metadata_of_the_users_other_files_is_out_of_reach(sandbox: Any, key: Path) -> None:
    before = seen(key)
    result = sandbox.execute(attacks(key))
    assert result.stdout, result
    found = json.loads(result.stdout)
    assert set(found) <= {0, 1, 13, 95}, OUTSIDE
    assert seen(key) == before


def flags(path: str) -> list[str]:
    """Attributes that a file system has of its own, by a descriptor for reading."""
    import array
    import fcntl
    import os

    found = []
    fd = os.open(path, os.O_RDONLY)
    for get, change, size in ((0x80086601, 0x40086602, 8), (0x801C581F, 0x401C5820, 28)):  # FS_IOC_[GS]ETFLAGS, FSXATTR
        held = array.array("B", bytes(size))
        try:
            fcntl.ioctl(fd, get, held)
            held[0] |= 0x40  # FS_NODUMP_FL, FS_XFLAG_NOATIME
            fcntl.ioctl(fd, change, held)
            found.append("won")
        except OSError as error:
            found.append(os.strerror(error.errno or 0))
    os.close(fd)
    return found


@pytest.fixture
def installed() -> Iterator[Path]:
    """One's own, which programs may read."""
    path = Path(sysconfig.get_path("purelib"), f"of_test_metadata_{secrets.token_hex(8)}.txt")
    path.write_text("installed", "utf-8")
    yield path
    path.unlink()


def test_one_may_change_attributes_of_what_one_owns(installed: Path) -> None:
    """The control arm."""
    found = flags(str(installed))
    if "won" not in found:
        pytest.skip(f"this file system has no attributes of its own: {found}")


@pytest.mark.attack("files", control="test_one_may_change_attributes_of_what_one_owns", level="confined")
def test_attributes_of_files_that_may_be_read_are_out_of_reach(sandbox: Any, installed: Path) -> None:
    before = seen(installed)
    code = f"{inspect.getsource(flags)}\nprint(flags({str(installed)!r}))"
    assert sandbox.execute(code).stdout == f"{['Operation not supported'] * 2}\n"
    assert seen(installed) == before


def test_whether_a_file_is_outside_is_not_told(sandbox: Any, key: Path) -> None:
    code = "import os\nprint(os.getuid())\nfor path in {!r}:\n    try: os.chmod(path, 0)\n"
    code += "    except OSError as error: print(error.errno)"
    user, *errnos = sandbox.execute(code.format([str(key), f"{key}.no"])).stdout.split()
    if int(user) != os.getuid():
        pytest.skip("the program is another user, and the kernel answers it")
    assert errnos == ["1", "1"]


OWN = """
import os, pathlib, shutil, subprocess, tarfile, tempfile, zipfile
def mode(path): return oct(os.stat(path).st_mode & 0o7777)
pathlib.Path('a.sh').write_text('#!/bin/sh\\necho ran\\n')
os.chmod('a.sh', 0o755)
print(subprocess.run(['./a.sh'], capture_output=True).stdout, mode('a.sh'))
os.utime('a.sh', ns=(5, 7_000_000_011))
shutil.copy2('a.sh', 'b.sh')
print(os.stat('b.sh').st_mtime_ns, mode('b.sh'))
by_filter = {'filter': 'data'} if hasattr(tarfile, 'data_filter') else {}
with tarfile.open('x.tar', 'w') as archive: archive.add('a.sh')
with tarfile.open('x.tar') as archive: archive.extractall('out', **by_filter)
print(os.stat('out/a.sh').st_mtime_ns // 10**9, mode('out/a.sh'))
fd = os.open('a.sh', os.O_RDONLY)
os.fchmod(fd, 0o500)
os.utime(fd, (3, 4))
os.fchown(fd, -1, -1)
print(mode('a.sh'), os.stat('a.sh').st_mtime)
here = os.open('.', os.O_PATH)
os.chown('a.sh', -1, -1, dir_fd=here)
os.lchown('a.sh', os.getuid(), os.getgid())
os.chmod('a.sh', 0o640, dir_fd=here)
for place in ('/proc/self/fd', '/proc/thread-self/fd', '/dev/fd'):  # its own, not those of who does it
    os.chmod(f'{place}/{fd}', 0o604)
    print(mode('a.sh'))
    os.chmod('a.sh', 0o600, dir_fd=here)
os.symlink('a.sh', 'link')
os.utime('link', (8, 8), follow_symlinks=False)
print(os.stat('a.sh').st_mtime, os.lstat('link').st_mtime, mode('link'))
for path in ('missing', '\\udcff'):
    try: os.chmod(path, 0)
    except OSError as error: print(error.errno)
try: os.chown('a.sh', os.getuid() + 1, -1)
except OSError as error: print(error.errno)
pathlib.Path('touched').touch()
os.utime('touched', (1, 1))
os.utime('touched')
print(os.stat('touched').st_mtime > 10**9)
with tempfile.NamedTemporaryFile() as file: os.fchmod(file.fileno(), 0o640)
commands = 'tar cf y.tar a.sh; tar xpf y.tar -C out; cp -a link out; install -m 700 a.sh i.sh; mv i.sh out; '
commands += 'touch -d @99 -a a.sh; mkdir -p q/r; cd q; chmod 755 ../a.sh; cp -p ../a.sh r; stat -c %a,%Y r/a.sh'
run = subprocess.run(commands, shell=True, capture_output=True, text=True)
print([run.stdout, run.stderr])
"""
OWN_SAID = """b'ran\\n' 0o755
7000000011 0o755
7 0o755
0o500 4.0
0o604
0o604
0o604
4.0 8.0 0o600
2
2
1
True
['755,4\\n', '']
"""


def test_its_own_files_are_a_programs_to_change(sandbox: Any) -> None:
    result = sandbox.execute(OWN)
    assert (result.stdout, result.stderr) == (OWN_SAID, "")


@pytest.mark.usefixtures("sandbox")
def test_a_session_changes_its_own_files_too() -> None:
    settings = {"isolation": "confined", "store_code": "never", "timeout_sec": HANG_S}
    with open_session(**settings) as session:
        assert session.run("import os; open('a', 'w').close(); os.chmod('a', 0o751)").exit_code == 0
        assert session.exec(["stat", "-c", "%a", "a"]).stdout == "751\n"
        assert session.exec(["chmod", "640", "a"]).exit_code == 0
        assert session.run("print(oct(os.stat('a').st_mode))").stdout == "0o100640\n"


def test_no_file_gets_the_rights_of_root(sandbox: Any) -> None:
    """Where root's program could not become somebody else."""
    result = sandbox.execute("import os\nopen('a', 'w').close()\nprint(os.getuid())\nos.chmod('a', 0o4755)")
    assert ("PermissionError" in result.stderr) == (result.stdout == "0\n"), result


def test_a_confined_program_of_root_owns_nothing_of_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has root's files")
    mode = os.stat("/etc/passwd").st_mode
    with get_sandbox(isolation="confined", store_code="never", warm_cells=0) as sandbox:
        result = sandbox.execute("import os\nos.chmod('/etc/passwd', 0o666)", timeout=HANG_S)
    assert "PermissionError" in result.stderr
    assert os.stat("/etc/passwd").st_mode == mode
