"""The private directory of a cell that has no root of its own: levels `confined` and `process`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from .layout import Layout

_PARTS = ("workspace", "program", "tmp", "home", "bin")


def make(layout: Layout, owner: int | None) -> str:
    directory = tempfile.mkdtemp(prefix="fumehood-")
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


def remove(directory: str) -> None:
    """rmtree goes by directory descriptors and follows no link; what the program made unreadable is opened up."""

    def open_up(function: Callable[..., Any], path: str, _: object) -> None:
        parent = os.path.dirname(path)
        try:
            os.chmod(parent, 0o700)
            function(path)
        except OSError:
            pass

    shutil.rmtree(directory, onerror=open_up)
    shutil.rmtree(directory, ignore_errors=True)
