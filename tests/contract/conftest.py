"""One suite, every backend, both drivers."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from docker_engine import docker, docker_host
from fumehood import AsyncSession, FumehoodError, IsolationUnavailable, OneShot, get_sandbox, open_session
from fumehood.types import Display, ExecutionResult, Exited, Output
from pace import GRACE_S, with_waits
from support import HANG_S, execute

__all__ = ["docker", "docker_host"]

# What a target cannot do, by module (not run at all) or test, and why. A gap of a test that starts to pass fails it.
RUNS_NOTHING = "the fake runs nothing"
NETWORK_SHARED = "this level has no network of its own: the host's is open"
NO_LOOPBACK = "this level has no network of its own: internet sockets are refused altogether"
OWN_IMAGE = "the image has an interpreter, packages and programs of its own"
ENGINES_NETWORK = "a container's network is the engine's: this machine's loopback is not in it"
TWO_DISKS = "in a container /workspace and /tmp are bounded each for itself"
ENDS_WITH_LOOP = "a container ends with the event loop that its streams belong to"
NO_OWN_DISK = "this level has no file system of its own: the private directory is on the host's disk"
OUTLIVES = "a session on a server outlives a client that was killed, until it has been idle for long enough"
GAPS: dict[str, dict[str, str]] = {
    "fake": {
        "test_programs": RUNS_NOTHING,
        "test_limits": RUNS_NOTHING,
        "test_inside": RUNS_NOTHING,
        "test_sessions": RUNS_NOTHING,
        "test_cancel_from_another_thread_kills_the_tree": RUNS_NOTHING,
        "test_eight_threads_at_once_each_get_their_own_result": RUNS_NOTHING,
    },
    "confined": {
        "test_a_program_may_serve_and_call_itself": NO_LOOPBACK,
        "test_disk": NO_OWN_DISK,
        "test_inodes": NO_OWN_DISK,
        "test_a_full_disk_is_an_error_and_what_was_there_stays": NO_OWN_DISK,
        "test_a_disk_filled_by_the_program_is_told_to_both": NO_OWN_DISK,
        "test_no_more_files_than_inodes": NO_OWN_DISK,
    },
    "process": {
        "test_the_network_is_off_by_default": NETWORK_SHARED,
        "test_disk": NO_OWN_DISK,
        "test_inodes": NO_OWN_DISK,
        "test_a_full_disk_is_an_error_and_what_was_there_stays": NO_OWN_DISK,
        "test_a_disk_filled_by_the_program_is_told_to_both": NO_OWN_DISK,
        "test_no_more_files_than_inodes": NO_OWN_DISK,
    },
    "docker": {
        "test_python_on_the_path_is_the_hosts_interpreter_with_its_packages": OWN_IMAGE,
        "test_the_program_itself_runs_in_the_hosts_interpreter_with_its_packages": OWN_IMAGE,
        "test_javascript": OWN_IMAGE,
        "test_the_network_is_there_when_asked_for_and_the_receipt_says_so": ENGINES_NETWORK,
        "test_a_full_disk_is_an_error_and_what_was_there_stays": TWO_DISKS,
        "test_a_disk_filled_by_the_program_is_told_to_both": TWO_DISKS,
        "test_no_more_files_than_inodes": TWO_DISKS,
    },
    "remote": {
        "test_the_death_of_the_process_ends_everything": OUTLIVES,
    },
    "docker-async": {
        "test_the_end_of_the_process_ends_everything": ENDS_WITH_LOOP,
        "test_the_death_of_the_process_ends_everything": ENDS_WITH_LOOP,
    },
}


# How long fumehood waits for what was told to stop, and for a container or a server, before it does without: by what is
# driven. On a busy machine that may be too short, so only tests of the waiting itself have it as it is.
ABOVE = (
    ("fumehood.execution", "INTERRUPT_GRACE_S"),
    ("fumehood.execution", "KILL_GRACE_S"),
    ("fumehood.lifetime", "CLOSE_WAIT_S"),
)
LOCAL = (
    ("fumehood.engine.cell", "_GONE_S"),
    ("fumehood.engine.interpreter", "_ENDING_S"),
    ("fumehood.engine.interpreter", "_STOP_S"),
)
WAITS = {
    "sealed": LOCAL,
    "confined": LOCAL,
    "process": LOCAL,
    "docker": (
        ("fumehood.backends.docker", "_READY_S"),
        ("fumehood.backends.docker.container", "_MAKE_S"),
        ("fumehood.backends.docker.container", "_FATE_S"),
        ("fumehood.backends.docker.interpreter", "_ENDING_S"),
        ("fumehood.backends.docker.interpreter", "_STOP_S"),
        ("fumehood.backends.docker.process", "_CONTAINER_GRACE_S"),
        ("fumehood.backends.docker.process", "_CLOSE_S"),
    ),
    "remote": (("fumehood.backends.remote", "_MEET_S"), ("fumehood.backends.remote.process", "_END_S")),
}
HURRY_S = 0.5


@dataclass(frozen=True)
class Target:
    level: str  # a level of the local backend, or another backend
    driver: str
    warm: bool = False

    def __str__(self) -> str:
        return f"{self.level}-{self.driver}{'-warm' * self.warm}"

    @property
    def settings(self) -> dict[str, Any]:
        if self.level == "fake":
            return {"type": "fake"}
        if self.level == "remote":
            return {"type": "remote"}
        if self.level == "docker":
            return {"type": "docker", "docker_memory_limit": "1g", "warm_cells": 2 * self.warm}
        return {"type": "local", "isolation": self.level, "warm_cells": 2 * self.warm}


# Who drives is above what is driven: both drivers where the most is at stake, elsewhere one of them for single
# executions and the other for sessions, and all of them for what is about driving.
WARM = (Target("sealed", "direct", warm=True), Target("docker", "direct", warm=True))
ALL_TARGETS = tuple(
    Target(level, driver)
    for level in ("sealed", "confined", "process", "fake", "docker", "remote")
    for driver in ("direct", "async")
)
TARGETS: list[Any] = [
    each
    for each in ALL_TARGETS
    if str(each) not in ("confined-async", "process-direct", "docker-async", "remote-direct")
]
TARGETS += [pytest.param(each, marks=pytest.mark.soak if each.level == "docker" else ()) for each in WARM]
SESSION_TARGETS = [
    pytest.param(each, marks=pytest.mark.soak if str(each) == "docker-async" else ())
    for each in ALL_TARGETS
    if str(each) not in ("confined-direct", "process-async", "remote-async")
]


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

    def run(self, code: str, language: str = "python", timeout: float = HANG_S, **named: Any) -> ExecutionResult:
        return execute(self.target.driver, self.sandbox, textwrap.dedent(code), language, timeout, **named)

    def out(self, code: str, *args: Any, **named: Any) -> str:
        """What a program that must go well prints."""
        result = self.run(code, *args, **named)
        assert (result.exit_code, result.stderr) == (0, ""), result
        return result.stdout.strip()


@dataclass
class Kept:
    """A session on one target, by either driver, with its verbs; calling it with settings gives another one."""

    target: Target
    settings: dict[str, Any]
    loop: asyncio.AbstractEventLoop
    opened: list[Kept] = field(default_factory=list)
    session: Any = field(init=False)

    def __post_init__(self) -> None:
        make = open_session if self.target.driver == "direct" else AsyncSession
        self.session = make(**{"store_code": "never", **self.target.settings, **self.settings})
        self.opened.append(self)

    def __call__(self, **settings: Any) -> Kept:
        return Kept(self.target, {**self.settings, **settings}, self.loop, self.opened)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.session, name)
        if inspect.iscoroutinefunction(value):
            return lambda *args, **named: self.wait_for(value(*args, **named))
        return value

    def wait_for(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def run(self, code: str, timeout: float = HANG_S, **named: Any) -> ExecutionResult:
        call = self.__getattr__("run")
        result: ExecutionResult = call(textwrap.dedent(code), timeout, **named)
        return result

    def out(self, code: str, **named: Any) -> str:
        """What a run that must go well prints."""
        result = self.run(code, **named)
        assert (result.exit_code, result.stderr) == (0, ""), result
        return result.stdout.strip()

    def value(self, code: str) -> Any:
        """The last expression of a run that must go well, as text."""
        result = self.run(code)
        assert (result.exit_code, result.stderr) == (0, ""), result
        return result.meta["results"][-1]["text/plain"]

    def path(self, path: str) -> str:
        """Where the program finds what its caller calls /tmp/… or /workspace/…; makes the sandbox."""
        self.check()
        _, top, rest = path.split("/", 2)
        return f"{getattr(self.places, top)}/{rest}"

    def watch(
        self, program: Any, leave_after: int | None = None
    ) -> tuple[list[Output | Display | Exited], ExecutionResult]:
        """The events of a stream, and its result."""
        seen: list[Any] = []

        async def watch() -> ExecutionResult:
            async with self.session.stream(program, HANG_S) as stream:
                async for event in stream:
                    seen.append(event)
                    if len(seen) == leave_after:
                        break
            return stream.result

        if self.target.driver == "async":
            return seen, self.wait_for(watch())
        with self.session.stream(program, HANG_S) as stream:
            for event in stream:
                seen.append(event)
                if len(seen) == leave_after:
                    break
        return seen, stream.result


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
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not stop when it is interrupted is killed soon."""
    monkeypatch.setattr("fumehood.execution.INTERRUPT_GRACE_S", HURRY_S)


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(request.node)
    for module, name in (*ABOVE, *WAITS.get(target.level, ())) if target is not None else ():
        monkeypatch.setattr(importlib.import_module(module), name, GRACE_S)


@pytest.fixture
def within_s(request: pytest.FixtureRequest) -> float:
    """How long to wait for what must come; for what is not to be expected, since the target has that gap, a moment."""
    return 3.0 if gaps_of(request.node) else HANG_S


def serve(directory: Path, interrupt_grace_s: float) -> Iterator[tuple[str, str]]:
    """A server's address and a token for it. It allows all that the tests ask for."""
    pytest.importorskip("starlette", reason="needs the extra `server`")
    from running import TOKENS, Running

    if (reason := why_not("sealed")) is not None:
        pytest.skip(reason)
    allowed = {"NETWORK": "true", "SUPPORTED_LANGUAGES": "python,javascript,bash", "ALLOWED_COMMANDS": "*"}
    settings = {**allowed, "ISOLATION": "sealed", "MEMORY_MB": "4096", "STORE_CODE": "never"}
    waits = [*((*wait, GRACE_S) for wait in (*ABOVE, *LOCAL)), (*ABOVE[0], interrupt_grace_s)]
    env = {f"SANDBOX_{name}": value for name, value in settings.items()}
    server = Running(directory, env={**env, **with_waits(directory / "waits", waits)})
    yield server.url, TOKENS["alice"]
    assert server.stop() == 0


@pytest.fixture(scope="session")
def remote_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    yield from serve(tmp_path_factory.mktemp("remote"), GRACE_S)


@pytest.fixture(scope="session")
def hurried_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    yield from serve(tmp_path_factory.mktemp("hurried"), HURRY_S)


@pytest.fixture
def remote(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in the environment, where a user would say it."""
    server = "hurried_server" if "hurried" in request.fixturenames else "remote_server"
    url, token = request.getfixturevalue(server)
    monkeypatch.setenv("SANDBOX_REMOTE_URL", url)
    monkeypatch.setenv("SANDBOX_REMOTE_TOKEN", token)


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest) -> None:
    """For targets that need Docker, the tests' own engine; for those that need a server, a real one."""
    target = target_of(request.node)
    if target is not None and target.level in ("docker", "remote"):
        request.getfixturevalue(target.level)


@pytest.fixture
def box(target: Target) -> Iterator[Box]:
    reason = why_not(target.level)
    if reason is not None:
        pytest.skip(reason)
    box = Box(target, {})
    yield box
    for sandbox in box.opened:
        sandbox.close()


@pytest.fixture
def session(target: Target, tmp_path: Any) -> Iterator[Kept]:
    reason = why_not(target.level)
    if reason is not None:
        pytest.skip(reason)
    with asyncio.Runner() as runner:  # at its end, what still goes on is told to stop, as by asyncio.run
        loop = runner.get_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        kept = Kept(target, {"output_dir": str(tmp_path / "output"), "session_id": "x"}, loop)
        yield kept
        for each in kept.opened:
            each.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if "module" in gaps_of(item)]
    items[:] = [item for item in items if "module" not in gaps_of(item)]
    config.hook.pytest_deselected(items=left_out)
    for item in items:
        if reason := gaps_of(item).get("test"):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def target_of(item: pytest.Item) -> Target | None:
    callspec = getattr(item, "callspec", None)
    target = callspec.params.get("target") if callspec else None
    return target if isinstance(target, Target) else None


def gaps_of(item: pytest.Item) -> dict[str, str]:
    """The gaps of its target that it falls in: as a "test", as part of its "module"."""
    target = target_of(item)
    if target is None:
        return {}
    gaps = {**GAPS.get(target.level, {}), **GAPS.get(str(target), {})}
    module = item.module.__name__.rpartition(".")[2]  # type: ignore[attr-defined]
    found = {"test": gaps.get(item.originalname), "module": gaps.get(module)}  # type: ignore[attr-defined]
    return {kind: reason for kind, reason in found.items() if reason is not None}
