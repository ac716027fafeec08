"""What a set of packages may take on this machine, held before and while it is unpacked. Wheels are made here."""

from __future__ import annotations

import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from fumehood import installation, packages
from fumehood.config import Settings
from fumehood.errors import PackageError
from fumehood.guest.procfs import stat
from fumehood.installation import MAX_DEPTH, Installation, Room, TooLarge, measure, remove
from fumehood.packages import ensure
from support import HANG_S, wait_until

_MIB = 1 << 20
BOMB_MIB = 64
BOMB = BOMB_MIB * _MIB + 0x12345  # a number that is nowhere else in the wheel

by_each_installer = pytest.mark.parametrize(
    "installer",
    ["pip", pytest.param("uv", marks=pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not on PATH"))],
)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "INSTALL_TIMEOUT_S", 2 * HANG_S)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    directory = tmp_path / "house"
    directory.mkdir()
    return directory


@pytest.fixture
def settings(house: Path, tmp_path: Path) -> Settings:
    return Settings(wheelhouse=str(house), packages_dir=str(tmp_path / "packages"), packages_mb=16)


@pytest.fixture
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pip":
        monkeypatch.setattr(shutil, "which", lambda _: None)
    return str(request.param)


def wheel(house: Path, name: str, files: Mapping[str, bytes]) -> Path:
    info = f"{name}-1.0.dist-info"
    own = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents = {**files, **own}
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    path = house / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inner, data in {**contents, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(inner, data)
    return path


def lie(wheel: Path, true_bytes: int, told_bytes: int) -> None:
    """In the local header and in the table: a file of that many bytes is told to be of so many."""
    data = wheel.read_bytes()
    true = struct.pack("<L", true_bytes)
    assert data.count(true) == 2
    wheel.write_bytes(data.replace(true, struct.pack("<L", told_bytes)))


def nothing_is_left(settings: Settings) -> bool:
    return [entry for entry in os.listdir(settings.packages_dir or "") if not entry.endswith(".lock")] == []


# --- sets that are refused ---


@by_each_installer
@pytest.mark.usefixtures("installer")
def test_a_small_wheel_that_unpacks_to_much_is_refused(settings: Settings, house: Path) -> None:
    bomb = wheel(house, "bomb", {"zeros.bin": bytes(BOMB)})
    assert bomb.stat().st_size < _MIB
    with pytest.raises(PackageError, match=r"bomb.* would take .*SANDBOX_PACKAGES_MB allows 16 MiB for all packages"):
        ensure(["bomb"], settings)
    assert nothing_is_left(settings)
    layer = ensure(["bomb"], settings._replace(packages_mb=BOMB_MIB + 1))  # where it may
    assert os.path.getsize(f"{layer.path}/zeros.bin") == BOMB


def test_the_refusal_names_the_wheel_and_its_size(
    settings: Settings, house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    wheel(house, "bomb", {"zeros.bin": bytes(BOMB)})
    with pytest.raises(PackageError, match=rf"bomb-1\.0-py3-none-any\.whl would take {BOMB_MIB + 1} MiB or more in 4 "):
        ensure(["bomb"], settings)


@by_each_installer
@pytest.mark.usefixtures("installer")
def test_a_wheel_that_lies_about_its_size_is_refused(settings: Settings, house: Path) -> None:
    bomb = wheel(house, "bomb", {"zeros.bin": bytes(BOMB)})
    lie(bomb, BOMB, 1000)
    with pytest.raises(PackageError, match="bomb"):
        ensure(["bomb"], settings)
    assert nothing_is_left(settings)


@by_each_installer
@pytest.mark.usefixtures("installer")
def test_wheels_that_fit_one_by_one_are_counted_together(settings: Settings, house: Path) -> None:
    names = [f"part{number}" for number in range(4)]
    for name in names:
        wheel(house, name, {f"{name}.bin": bytes(5 * _MIB)})
    with pytest.raises(PackageError, match=r"part0, part1, part2, part3 would take .* SANDBOX_PACKAGES_MB allows 16 "):
        ensure(names, settings)
    assert nothing_is_left(settings)
    assert len(ensure(names[:3], settings).installed) == 3


@by_each_installer
@pytest.mark.usefixtures("installer")
def test_a_wheel_of_many_small_files_is_refused(settings: Settings, house: Path) -> None:
    wheel(house, "many", {f"many/{number}.py": b"" for number in range(500)})
    few = settings._replace(packages_files=100)
    with pytest.raises(PackageError, match=r"many.* would be \d+ files .*, and SANDBOX_PACKAGES_FILES allows 100 "):
        ensure(["many"], few)
    assert nothing_is_left(few)
    assert ensure(["many"], settings._replace(packages_files=600)).installed == ("many==1.0",)


@by_each_installer
@pytest.mark.usefixtures("installer")
def test_a_wheel_that_nests_deeply_is_refused(settings: Settings, house: Path) -> None:
    wheel(house, "deep", {"a/" * (MAX_DEPTH + 10) + "x.py": b""})
    with pytest.raises(PackageError, match=rf"deep would nest directories deeper than {MAX_DEPTH}"):
        ensure(["deep"], settings)
    assert nothing_is_left(settings)


def test_a_package_that_is_built_is_held_as_well(settings: Settings, house: Path) -> None:
    backend = "open('zeros.bin', 'wb').truncate(1 << 40)\n"
    source = house / "made-1.0.tar.gz"
    _sdist(source, backend)
    with pytest.raises(PackageError, match=r"made could not be built .*File too large"):
        ensure(["made"], settings._replace(source_packages=("made",)))
    assert nothing_is_left(settings)


def _sdist(path: Path, backend: str) -> None:
    contents = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: made\nVersion: 1.0\n",
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'back'\nbackend-path = ['.']\n",
        "back.py": backend,
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, text in contents.items():
            entry = tarfile.TarInfo(f"made-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


# --- whatever the installer does ---


@pytest.fixture
def work(tmp_path: Path) -> Installation:
    directory = tmp_path / "work"
    directory.mkdir()
    return Installation(str(directory), Room(2 * _MIB, 200), HANG_S, lambda: None)


ENDLESS = """
import itertools, os, sys, time
print(os.getpid(), file=open(sys.argv[1] + "/pid", "w"), flush=True)
for number in itertools.count():
    open(f"{sys.argv[1]}/{number}", "wb").write(bytes(int(sys.argv[2])))
    time.sleep(0.001)
"""


@pytest.mark.parametrize("size", [0, 64 * 1024])
@pytest.mark.parametrize("where", ["site", "tmp"])
def test_an_installer_that_never_stops_writing_is_ended(work: Installation, size: int, where: str) -> None:
    place = os.path.join(os.path.dirname(work.site), where)
    with pytest.raises(TooLarge) as caught:
        work.run([sys.executable, "-c", ENDLESS, place, str(size)])
    taken = caught.value.taken
    assert taken.files > 400 if size == 0 else taken.size_bytes > 4 * _MIB
    pid = int(Path(place, "pid").read_text("ascii"))
    assert wait_until(lambda: stat(pid)[:1] in ([], [b"Z"])), "not even its dead are waited for here"


def test_one_file_never_grows_past_the_limit(work: Installation) -> None:
    path = os.path.join(work.site, "one")
    code, output = work.run([sys.executable, "-c", f"open({path!r}, 'wb').write(bytes(3 << 20))"])
    assert code != 0
    assert "[Errno 27] File too large" in output
    assert os.path.getsize(path) <= 2 * _MIB


def test_an_installer_gets_no_more_memory_than_it_needs(work: Installation) -> None:
    code, output = work.run([sys.executable, "-c", "bytearray(5 << 30)"])
    assert code != 0
    assert "MemoryError" in output


def test_what_is_left_in_the_end_is_checked_too(work: Installation) -> None:
    Path(work.site, "three").write_bytes(bytes(3 * _MIB))  # so quickly that nobody saw it
    with pytest.raises(TooLarge):
        work.check()


def test_a_file_with_two_names_counts_once_and_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(8192))
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("/")
    taken = measure(str(tmp_path), Room(1 << 40, 1000))
    assert (taken.size_bytes, taken.files) == (12288, 3)


def test_a_tree_deeper_than_python_recurses_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    deep = str(top) + "/a" * 1500
    os.makedirs(top)
    for depth in range(1, 1501):
        os.mkdir(str(top) + "/a" * depth)
    Path(deep, "file").write_bytes(b"x")
    remove(str(top))
    assert not top.exists()


def test_who_ends_an_installation_waits_for_all_that_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what is still ending could write where the directory is removed."""
    signals: list[int] = []

    def killpg(_: int, signo: int) -> None:
        signals.append(signo)
        if len(signals) == 4:
            raise ProcessLookupError

    with subprocess.Popen(["true"]) as process:
        monkeypatch.setattr(os, "killpg", killpg)
        installation._end(process)
    assert signals == [signal.SIGKILL, 0, 0, 0]
