"""What pip and uv print: a package's own metadata and build stand in it."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import Any

from fumehood import installer
from fumehood.errors import PackageError
from fumehood.installation import Room
from fumehood.requirements import parse

from .target import Target, text

_UNUSED: Any = SimpleNamespace(room=Room(1 << 30, 1000))
_WANTED = parse(["numpy>=2", "polars"])


def check(data: bytes) -> None:
    said = data.decode("utf-8", "replace")
    with tempfile.TemporaryDirectory() as wheelhouse:
        for wheels in (None, wheelhouse) if "No matching" not in said else (wheelhouse,):  # pip itself is not run
            try:
                installer._fail(_WANTED, 1, said, wheels, _UNUSED)
            except PackageError:
                pass
    list(installer._FILE.finditer(said))
    installer._BUILD_SAID.findall(said)
    installer._NAMES_A_SOURCE.search(text(data))


TARGET = Target("installer_output", check)
