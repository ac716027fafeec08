"""Directories that a killed process leaves behind: the next one sweeps them, and never what somebody still uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood import in_use
from support import HANG_S

HOLDS = "import sys; from fumehood import in_use; in_use.hold(sys.argv[1]); print(flush=True); input()"


def swept(parent: Path, **owners: set[int]) -> set[str]:
    """What goes."""
    gone: list[str] = []
    in_use.sweep(str(parent), gone.append, **owners)
    return {os.path.basename(path) for path in gone}


def test_only_what_is_named_so_and_nobody_holds_is_swept(tmp_path: Path) -> None:
    for name in ("fumehood-1-a", "fumehood-99999999-b", "fumehood-host", "fumehood-", "other-1-a", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / "fumehood-2-file").write_text("")
    (tmp_path / "fumehood-3-link").symlink_to(tmp_path / "other-1-a")
    held = in_use.hold(str(tmp_path / "fumehood-1-a"))
    assert swept(tmp_path) == {"fumehood-99999999-b"}
    os.close(held)
    assert swept(tmp_path) == {"fumehood-99999999-b", "fumehood-1-a"}


def test_other_users_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "fumehood-1-a").mkdir()
    assert swept(tmp_path, owners={os.geteuid() + 1}) == set()
    assert swept(tmp_path, owners={os.geteuid()}) == {"fumehood-1-a"}


def test_what_a_process_holds_is_in_use_until_it_is_killed(tmp_path: Path) -> None:
    made = tmp_path / "fumehood-1-a"
    made.mkdir()
    assert swept(tmp_path) == {made.name}  # the control arm
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(made)], stdin=-1, stdout=-1) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        assert swept(tmp_path) == set()
        holder.kill()
        holder.wait(HANG_S)
        assert swept(tmp_path) == {made.name}


def test_a_directory_that_was_swept_before_it_was_held_is_made_again(tmp_path: Path) -> None:
    names = iter(("fumehood-1-a", "fumehood-1-b", "fumehood-1-c"))
    sweeper = -1

    def make_one() -> str:
        nonlocal sweeper
        path = tmp_path / next(names)
        path.mkdir()
        if path.name.endswith("a"):
            path.rmdir()  # by a process that was faster
        elif path.name.endswith("b"):
            sweeper = in_use.hold(str(path))  # and this one is about to
        return str(path)

    path, held = in_use.make(make_one)
    assert path.endswith("c")
    for fd in (held, sweeper):
        os.close(fd)


def test_where_directories_cannot_be_locked_nothing_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: int) -> None:
        raise OSError(9, "as NFS does")

    (tmp_path / "fumehood-1-a").mkdir()
    monkeypatch.setattr(in_use.fcntl, "flock", refuses)
    os.close(in_use.hold(str(tmp_path / "fumehood-1-a")))
    assert swept(tmp_path) == set()
