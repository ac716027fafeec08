"""The private directory of a cell that has no root of its own: levels `confined` and `process`."""

from __future__ import annotations

import os
import shutil
import tempfile

from .layout import Layout
from .procfs import has_ended

_PASSES = 64  # one for each level of directories that had to be opened up
_PREFIX = "fumehood-"
_swept = 0  # by which process
_PARTS = ("workspace", "program", "tmp", "home", "bin")


def make(layout: Layout, owner: int | None) -> str:
    sweep(owner)
    directory = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    try:
        for name in _PARTS:
            os.mkdir(f"{directory}/{name}", 0o700)
        if not layout.is_virtual:
            for name in ("python", "python3"):
                os.symlink(layout.executable, f"{directory}/bin/{name}")
        if owner is not None:
            for name in ("", *_PARTS):
                os.chown(f"{directory}/{name}", owner, owner)
    except BaseException:
        remove(directory)
        raise
    return directory


def sweep(owner: int | None = None) -> None:
    """Once in a process: what one of ours left behind that was killed."""
    global _swept
    if _swept == os.getpid():
        return
    _swept = os.getpid()
    for entry in os.scandir(tempfile.gettempdir()):
        pid = entry.name.removeprefix(_PREFIX).partition("-")[0]
        if entry.name.startswith(_PREFIX) and pid.isdigit() and has_ended(pid):
            try:
                is_ours = entry.stat(follow_symlinks=False).st_uid in (os.geteuid(), owner)
                if is_ours and entry.is_dir(follow_symlinks=False):
                    remove(entry.path)
            except OSError:
                pass  # somebody else does the same


def add_session_parts(directory: str, owner: int | None) -> None:
    for name in ("data", "output"):
        path = f"{directory}/tmp/{name}"
        os.mkdir(path, 0o700)
        if owner is not None:
            os.chown(path, owner, owner)


def remove(directory: str) -> None:
    """rmtree goes by directory descriptors and follows no link; what the program made unreadable is opened up."""

    def open_up(_: object, path: str, __: object) -> None:
        for place in (os.path.dirname(path), path):
            if place != directory and not place.startswith(f"{directory}/"):
                continue  # what lies above is not ours
            try:
                if not os.path.islink(place) and os.path.isdir(place):
                    os.chmod(place, 0o700)
            except OSError:
                pass

    for _ in range(_PASSES):
        shutil.rmtree(directory, onerror=open_up)
        if not os.path.lexists(directory):
            return
