"""The trees of the root are shown by overlays: what is on the host is what a program sees."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from fumehood import get_sandbox
from fumehood.engine import _syscalls, frames, mounter, zygote
from fumehood.engine.jail import StepFailed
from fumehood.engine.overlays import Overlays
from support import HANG_S, open_fds

KIND = {"isolation": "sealed", "require": "sealed", "store_code": "never"}


@pytest.fixture
def package() -> Iterator[Path]:
    """The place of a package that nobody else knows, beside the installed ones."""
    path = Path(sysconfig.get_path("purelib"), f"of_test_overlays_{secrets.token_hex(8)}")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def install(package: Path, value: int) -> None:
    """As installers do: what was there is moved away, and removed at the end."""
    aside = package.with_name(f"~{package.name}")
    if package.exists():
        package.rename(aside)
    package.mkdir()
    (package / "__init__.py").write_text(f"from .part import value; print(value, {value})")
    (package / "part.py").write_text(f"value = {value}")
    for path in (package, *package.iterdir()):
        path.chmod(0o755)
    shutil.rmtree(aside, ignore_errors=True)


@pytest.mark.parametrize("warm_cells", [0, 2])
def test_what_is_installed_or_upgraded_meanwhile_is_found(package: Path, warm_cells: int) -> None:
    with get_sandbox(**KIND, warm_cells=warm_cells) as sandbox:

        def said() -> str:
            result = sandbox.execute(f"import {package.name}", timeout=HANG_S)
            return result.stdout or result.stderr.splitlines()[-1]

        assert said() == f"ModuleNotFoundError: No module named '{package.name}'"
        for value in (1, 2):
            install(package, value)
            assert [said() for _ in range(warm_cells + 1)] == [f"{value} {value}\n"] * (warm_cells + 1)


MOUNTED = """
import subprocess
from pathlib import Path
from fumehood import get_sandbox

subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", "/usr/share"], check=True)
Path("/usr/share/mounted").write_text("there")
with get_sandbox(isolation="sealed", require="sealed", store_code="never") as sandbox:
    print(sandbox.execute("import os; print(os.listdir('/usr/share'), len(os.listdir('/usr/bin')) > 1)").stdout)
"""


def test_a_tree_with_another_mount_in_it_is_shown_whole(elsewhere, public_path: Path) -> None:
    assert elsewhere(MOUNTED, str(public_path)) == "['mounted'] True\n\n"


class Kernel:
    """Makes overlays until it fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.made = self.fails_at = self.fails_with = 0
        monkeypatch.chdir(tmp_path)  # what makes overlays goes elsewhere
        monkeypatch.setattr(_syscalls, "overlay", self.overlay)
        monkeypatch.setattr(_syscalls, "mount", self.overlay)
        monkeypatch.setattr(_syscalls, "open_tree", lambda _: os.open(".", os.O_RDONLY))

    def overlay(self, *_: object) -> int:
        self.made += 1
        if self.made == self.fails_at:
            raise OSError(self.fails_with, os.strerror(self.fails_with))
        return os.open(".", os.O_RDONLY)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kernel:
    return Kernel(monkeypatch, tmp_path)


SHORTAGES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EAGAIN]


@pytest.mark.parametrize("number", SHORTAGES)
def test_a_shortage_leaves_no_tree_without_its_overlay(kernel: Kernel, number: int) -> None:
    kernel.fails_at, kernel.fails_with = 2, number
    overlays = Overlays(["/usr", "/etc"])
    held = open_fds()
    with pytest.raises(StepFailed) as failed:
        overlays.prepare()
    assert (failed.value.step, failed.value.errno) == ("overlays", number)
    assert open_fds() == held
    overlays.prepare()
    assert open_fds() == held + 2
    overlays.forget()
    kernel.made = 0
    overlays.prepare_ahead()  # nobody waits for it, nobody is told
    assert open_fds() == held
    overlays.prepare()
    assert open_fds() == held + 2
    overlays.forget()


def test_no_cell_is_born_without_the_overlays_that_a_shortage_kept_from_it(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pidfd = 1000
    monkeypatch.setattr(zygote, "_make_cell", lambda *_: pidfd)
    overlays = Overlays(["/usr", "/etc"])
    held = open_fds()

    def obey() -> tuple[bytes, int]:
        others = zygote._Network(), zygote._Volumes(overlays), overlays, zygote._Orphans()
        return zygote._obey({"volume": None, "flags": 0}, [], *others)

    kernel.fails_at, kernel.fails_with = 1, errno.EMFILE
    with pytest.raises(StepFailed):
        obey()
    assert obey() == (frames.BORN, pidfd)
    assert open_fds() == held + 2
    overlays.forget()


def test_no_volume_is_made_without_them_either(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    overlays = Overlays(["/usr", "/etc"])
    volumes = zygote._Volumes(overlays)
    volumes._home = 1000  # it has one
    held = open_fds()
    made = []
    monkeypatch.setattr(volumes, "_build", lambda *_: made.append(open_fds() - held) or 1001)
    monkeypatch.setattr(volumes, "leave", lambda: None)
    monkeypatch.setattr(zygote, "_own_mounts", lambda: 1002)
    kernel.fails_at, kernel.fails_with = 1, errno.EMFILE
    with pytest.raises(StepFailed):
        volumes.make({"make_volume": 1}, [])
    assert volumes.make({"make_volume": 1}, []) == 1001
    assert made == [2]


def test_a_tree_of_which_there_can_be_no_overlay_stays_as_it_is(kernel: Kernel) -> None:
    kernel.fails_at, kernel.fails_with = 2, errno.EINVAL
    overlays = Overlays(["/usr", "/etc"])
    held = open_fds()
    overlays.prepare()
    overlays.forget()
    overlays.prepare()
    assert open_fds() == held + 1
    overlays.forget()


@pytest.mark.parametrize("number", [*SHORTAGES, errno.EINVAL])
def test_a_shortage_lends_no_file_without_its_overlay(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    monkeypatch.setattr(_syscalls, "is_mount", lambda *_: False)
    monkeypatch.setattr(mounter, "_OVERLAYS", str(tmp_path))
    kernel.fails_at, kernel.fails_with = 1, number
    lent = mounter._Lent(str(tmp_path), "file")
    overlays = mounter._Overlays()
    if number == errno.EINVAL:  # the kernel makes none of this one
        assert overlays.tree(lent) == lent.tree
    else:
        with pytest.raises(OSError) as failed:
            overlays.tree(lent)
        assert failed.value.errno == number
    for fd in (lent.tree, lent.directory):
        os.close(fd)
