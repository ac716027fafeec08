"""One suite, every backend, both drivers."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from fumehood import FumehoodError, IsolationUnavailable, OneShot, get_sandbox
from fumehood.types import ExecutionResult
from support import execute

# What a target cannot do, by module or test, and why. A gap that starts to pass fails the suite.
RUNS_NOTHING = "the fake runs nothing"
NETWORK_SHARED = "this level has no network of its own: the host's is open"
NO_LOOPBACK = "this level has no network of its own: internet sockets are refused altogether"
NO_OWN_DISK = "this level has no file system of its own: the private directory is on the host's disk"
GAPS: dict[str, dict[str, str]] = {
    "fake": {
        "test_programs": RUNS_NOTHING,
        "test_limits": RUNS_NOTHING,
        "test_inside": RUNS_NOTHING,
        "test_cancel_from_another_thread_kills_the_tree": RUNS_NOTHING,
        "test_eight_threads_at_once_each_get_their_own_result": RUNS_NOTHING,
    },
    "confined": {
        "test_a_program_may_serve_and_call_itself": NO_LOOPBACK,
        "test_disk": NO_OWN_DISK,
        "test_inodes": NO_OWN_DISK,
    },
    "process": {
        "test_the_network_is_off_by_default": NETWORK_SHARED,
        "test_disk": NO_OWN_DISK,
        "test_inodes": NO_OWN_DISK,
    },
}


@dataclass(frozen=True)
class Target:
    level: str  # a level of the local backend, or fake
    driver: str
    warm: bool = False

    def __str__(self) -> str:
        return f"{self.level}-{self.driver}{'-warm' * self.warm}"

    @property
    def settings(self) -> dict[str, Any]:
        if self.level == "fake":
            return {"type": "fake"}
        return {"type": "local", "isolation": self.level, "warm_cells": 2 * self.warm}


TARGETS = [
    Target(level, driver) for level in ("sealed", "confined", "process", "fake") for driver in ("direct", "async")
]
TARGETS.insert(2, Target("sealed", "direct", warm=True))


@dataclass
class Box:
    """Runs programs on one target; calling it with settings gives one that has those too."""

    target: Target
    settings: dict[str, Any]
    opened: list[OneShot] = field(default_factory=list)
    sandbox: OneShot = field(init=False)

    def __post_init__(self) -> None:
        self.sandbox = get_sandbox(**{"store_code": "never", **self.target.settings, **self.settings})
        self.opened.append(self.sandbox)

    def __call__(self, **settings: Any) -> Box:
        return Box(self.target, {**self.settings, **settings}, self.opened)

    def run(self, code: str, language: str = "python", timeout: float = 20, **named: Any) -> ExecutionResult:
        return execute(self.target.driver, self.sandbox, textwrap.dedent(code), language, timeout, **named)

    def out(self, code: str, *args: Any, **named: Any) -> str:
        """What a program that must go well prints."""
        result = self.run(code, *args, **named)
        assert (result.exit_code, result.stderr) == (0, ""), result
        return result.stdout.strip()


@functools.cache
def why_not(level: str) -> str | None:
    try:
        with get_sandbox(**Target(level, "direct").settings) as sandbox:
            sandbox.check()
    except IsolationUnavailable as error:
        return str(error)
    except FumehoodError as error:
        pytest.fail(f"{level}: {error}")
    return None


@pytest.fixture(params=TARGETS, ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    return request.param


@pytest.fixture
def box(target: Target) -> Iterator[Box]:
    reason = why_not(target.level)
    if reason is not None:
        pytest.skip(reason)
    box = Box(target, {})
    yield box
    for sandbox in box.opened:
        sandbox.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        target = callspec.params.get("target") if callspec else None
        if not isinstance(target, Target):
            continue
        gaps = GAPS.get(target.level, {})
        module = item.module.__name__.rpartition(".")[2]  # type: ignore[attr-defined]
        reason = gaps.get(item.originalname) or gaps.get(module)  # type: ignore[attr-defined]
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
