"""What a test says of time and cost so that it holds on a machine of any speed."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fumehood.types import ExecutionResult
from support import HANG_S

TIMES = 8  # the larger input is so many times the smaller one
AT_MOST = 24.0  # linear work grows 8-fold, quadratic work 64-fold


def growth(work: Callable[[int], object], size: int, tries: int = 5) -> float:
    """How many times the processor time of `work(size)` the same takes for an input of `TIMES` that size.

    The least of several measurements counts, since what else the machine does only ever adds to one.
    """
    small = min(_cpu_s(work, size) for _ in range(tries))
    large = float("inf")
    for _ in range(tries):
        large = min(large, _cpu_s(work, size * TIMES))
        if large < small * AT_MOST:
            break
        small = min(small, _cpu_s(work, size))
    return large / small


def _cpu_s(work: Callable[[int], object], size: int) -> float:
    started = time.thread_time()
    work(size)
    return time.thread_time() - started


def calls(work: Callable[[], object]) -> list[str]:
    """The functions that this thread calls in it, in order: what it costs on any machine."""
    names: list[str] = []

    def note(frame: Any, event: str, what: Any) -> None:
        if event in ("call", "c_call"):
            names.append(frame.f_code.co_name if event == "call" else what.__name__)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return names


def timed_out(run: Callable[[float], ExecutionResult], says: str) -> tuple[ExecutionResult, float]:
    """What a time-out makes of a program that has said `says`, and that time-out: on a busy machine a longer one."""
    timeout = 0.4
    while True:
        result = run(timeout)
        assert result.meta["reason"] == "timeout", result
        if says in result.stdout:
            assert (result.exit_code, result.meta["timed_out"]) == (-1, True)
            assert f"timed out after {timeout:g} s" in result.stderr
            assert result.duration >= timeout
            return result, timeout
        timeout *= 2
        assert timeout < HANG_S, result


def at_some_pace(attempt: Callable[[float], bool], first_s: float = 0.4) -> bool:
    """Whether it went as meant with any of some times: `attempt` is False for one that the machine was too slow for."""
    return any(attempt(seconds) for seconds in (first_s * 4**number for number in range(6)) if seconds < HANG_S)


GRACE_S = 120.0
_SITECUSTOMIZE = """
import importlib, sys
if sys.orig_argv[1:3] == ["-m", "fumehood"]:
    for module, name, seconds in {waits!r}:
        vars(importlib.import_module(module))[name] = seconds
"""


def with_waits(directory: Path, waits: Sequence[tuple[str, str, float]]) -> dict[str, str]:
    """Variables for `python -m fumehood` in a process of its own, with these module's constants changed.

    Python runs a module of this name, if it finds one, when it starts.
    """
    directory.mkdir(exist_ok=True)
    (directory / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(waits=list(waits)), "utf-8")
    return {"PYTHONPATH": str(directory)}


def take_signals() -> None:
    """For a child before its program: what this process was told to ignore its children would ignore too."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
