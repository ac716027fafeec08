"""What goes with a failure: the load of the machine, the last results, the logs of servers and engines, the doctor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fumehood.types import ExecutionResult

TAIL = 4000  # characters of each log
DOCTOR_S = 60

_results: deque[ExecutionResult] = deque(maxlen=3)


def _noted(make: Callable[..., None]) -> Callable[..., None]:
    def init(result: ExecutionResult, *args: Any, **named: Any) -> None:
        make(result, *args, **named)
        _results.append(result)

    return init


def pytest_configure() -> None:
    ExecutionResult.__init__ = _noted(ExecutionResult.__init__)  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(name, text) for name, text in _evidence(item, call) if text.strip()]
    return report


def pytest_runtest_setup() -> None:
    _results.clear()


def _evidence(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[tuple[str, str]]:
    yield "the machine", _machine()
    yield from _output_of(call)
    for result in _results:
        yield "a result", _tail(repr(result))
    for server in list(getattr(sys.modules.get("running"), "LIVE", ())):
        yield f"the log of {server.url}", _tail(server.log())
    for log in _engine_logs(item):
        yield f"the end of {log}", _tail(log.read_text("utf-8", "replace"))
    yield "fumehood doctor --json", _doctor()


def _machine() -> str:
    load = f"load {' '.join(f'{each:.1f}' for each in os.getloadavg())} on {os.cpu_count()} cores"
    pressure = [
        f"{path.name} pressure: {path.read_text().splitlines()[0]}"
        for path in map(Path, ("/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io"))
        if os.access(path, os.R_OK)
    ]
    memory = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
    return "\n".join([load, *pressure, *memory])


def _output_of(call: pytest.CallInfo[None]) -> Iterator[tuple[str, str]]:
    """Of a subprocess that failed or took too long, the end of what it printed."""
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, subprocess.CalledProcessError | subprocess.TimeoutExpired):
        for name, said in (("stdout", error.stdout), ("stderr", error.stderr)):
            text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
            yield f"{name} of {str(error.cmd)[:80]}", _tail(text or "")


def _engine_logs(item: pytest.Item) -> list[Path]:
    """Of the Docker engines that the test had to do with."""
    address = getattr(item, "funcargs", {}).get("docker_host")
    if not isinstance(address, str):
        return []
    home = Path(address.removeprefix("unix://")).parent
    logs = (home / "docker.log", home.parent / "cache" / "second" / "docker.log")
    return [log for log in logs if log.is_file()]


@cache
def _doctor() -> str:
    """Once for each process: it takes a while and says the same."""
    command = [sys.executable, "-m", "fumehood", "doctor", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=DOCTOR_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {DOCTOR_S} s"
    return done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")


def _tail(text: str) -> str:
    return text if len(text) <= TAIL else f"… {text[-TAIL:]}"
