"""What a cell's program process is told over its standard input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..types import Command


def program(command: Command, environment: Mapping[str, str], *, serves: bool = False) -> dict[str, Any]:
    """`serves`: to be the interpreter that runs one request after another."""
    return {
        "argv": list(command.argv),
        "script": command.script,
        "inline": command.script is not None and command.argv[0] == "python",
        "env": {**environment, **command.env},
        "files": dict(command.files),
        "cpu_s": max(1, math.ceil(command.cpu_s)) if command.cpu_s and not serves else 0,
        "serves": serves,
    }
