"""Runs a module as `python -m` does, for fumehood's server: with deadlines that only a hang reaches.

A server of the tests may have a small share of a busy machine. What a test is about it sets by flags or settings, or
by NO_TOKEN_S: seconds for a connection that shows no token.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
from typing import Any

from fumehood import execution, packages
from fumehood.engine import engine, pool, zygotes
from fumehood.server import health, run, tokens
from fumehood.server.options import ServerOptions

_FOREVER_S = 3600.0
_CONSTANTS = {
    execution: ("INTERRUPT_GRACE_S", "KILL_GRACE_S"),
    packages: ("INSTALL_TIMEOUT_S",),
    engine: ("_READY_S",),
    pool: ("_READY_S",),
    zygotes: ("_START_S", "_BORN_S"),
    health: ("_WAIT_S",),
    run: ("AFTER_GRACE_S",),
    tokens: ("TICKET_S",),
}
_OPTIONS = (
    "queue_wait_s",
    "header_timeout_s",
    "body_timeout_s",
    "write_timeout_s",
    "idle_timeout_s",
    "unauthenticated_s",
)
_start = asyncio.create_subprocess_exec


def _start_patient(program: str, *words: str, **kinds: Any) -> Any:
    """The workers are started so too."""
    if words[:2] == ("-P", "-m"):
        words = ("-P", __file__, *words[2:])
    return _start(program, *words, **kinds)


def _be_patient() -> None:
    for module, names in _CONSTANTS.items():
        for name in names:
            assert isinstance(getattr(module, name), float), name
            setattr(module, name, _FOREVER_S)
    defaults = {**ServerOptions._field_defaults, **dict.fromkeys(_OPTIONS, _FOREVER_S)}
    defaults["unauthenticated_s"] = float(os.environ.get("NO_TOKEN_S", _FOREVER_S))
    ServerOptions.__new__.__defaults__ = tuple(defaults.values())
    asyncio.create_subprocess_exec = _start_patient  # type: ignore[assignment]


if __name__ == "__main__":
    _be_patient()
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if place != here]  # as `python -m` has it
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
