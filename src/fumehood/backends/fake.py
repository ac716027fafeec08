"""A backend that runs nothing and answers from a script, for tests of programs that use fumehood.

    fake = FakeBackend(replies=[Reply("4\\n"), Reply(stderr="boom\\n", exit_code=1)])
    get_sandbox(fake).execute("print(2 + 2)").stdout  # "4\\n"
    fake.commands[0].script                           # b"print(2 + 2)"

`replies` is a list, used in turn, or a function of the `Command`. Without it the program text comes back as stdout.

A sandbox that keeps has files in memory, shared with the test as `fake.sandboxes[-1].files`; a function may change
them, which is how a "program" leaves files behind.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import Settings
from ..errors import EngineFailed, FileError, IsolationUnavailable, SandboxLost
from ..passed_over import OTHER
from ..types import AXES, Axis, Command, Display, Exited, FileStat, Output, Reason, Receipt
from .base import Backend, Process, Sandbox, SandboxSpec

RECEIPT = Receipt("process", {name: Axis("none", "fake: nothing runs") for name in AXES})


@dataclass(frozen=True, slots=True)
class Reply:
    """What the program would have done; `after_s` is how long it would have taken."""

    stdout: str | bytes = ""
    stderr: str | bytes = ""
    exit_code: int = 0
    reason: Reason | None = None  # None: ok or error, by the exit code
    after_s: float = 0.0
    cpu_s: float = 0.0
    max_rss_bytes: int = 0
    results: Sequence[Mapping[str, Any]] = ()  # MIME bundles of a run that keeps state
    state_lost: bool = False

    def events(self) -> Iterable[Event]:
        for stream, text in (("stdout", self.stdout), ("stderr", self.stderr)):
            if text:
                data = text.encode() if isinstance(text, str) else text
                yield Output("stdout" if stream == "stdout" else "stderr", data)
        for bundle in self.results:
            yield Display(bundle)
        yield self.after_s
        reason = self.reason or ("ok" if self.exit_code == 0 else "error")
        yield Exited(self.exit_code, reason, self.cpu_s, self.max_rss_bytes, self.state_lost)


Event = Output | Display | Exited | float  # a float is a pause in seconds
Answer = Reply | Iterable[Event]
Replies = Sequence[Answer] | Callable[[Command], Answer]


class FakeBackend(Backend):
    """Answers from a script; its receipt says that nothing was isolated."""

    name = "fake"

    def __init__(self, settings: Settings | None = None, replies: Replies | None = None) -> None:
        self.commands: list[Command] = []
        self.sandboxes: list[FakeSandbox] = []
        self.processes: list[FakeDirectProcess] = []
        self._require = settings.require if settings else None
        self.deaf = False  # whether its programs ignore an interrupt
        self._replies = replies
        self._lock = threading.Lock()

    async def check(self) -> Receipt:
        self._refuse_more()
        return RECEIPT

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self._refuse_more()
        sandbox = FakeSandbox(self, spec)
        if spec.keeps:
            self.sandboxes.append(sandbox)
        return sandbox

    async def close(self) -> None:
        pass

    def start_direct(self, spec: SandboxSpec, command: Command) -> FakeDirectProcess:  # noqa: ARG002
        self._refuse_more()
        return FakeDirectProcess(self.answer(command))

    def _refuse_more(self) -> None:
        if self._require not in (None, "process"):
            raise IsolationUnavailable(
                f"{self._require!r} isolation is required and the fake backend isolates nothing; set SANDBOX_TYPE=local"
            )

    def answer(self, command: Command) -> Iterable[Event]:
        """What the script says to `command`, which is noted in `commands`."""
        with self._lock:
            number = len(self.commands)
            self.commands.append(command)
        if self._replies is None:
            answer: Answer = Reply(command.script or " ".join(command.argv).encode())
        elif callable(self._replies):
            answer = self._replies(command)
        elif number < len(self._replies):
            answer = self._replies[number]
        else:
            raise EngineFailed(f"the fake backend has {len(self._replies)} replies and was asked once more")
        return answer.events() if isinstance(answer, Reply) else answer


class FakeDirectProcess:
    """Plays one answer. A kill ends any pause at once, an interrupt too unless the program is `deaf` to it."""

    receipt = RECEIPT

    def __init__(self, events: Iterable[Event], *, deaf: bool = False) -> None:
        self._events = iter(events)
        self._deaf = deaf
        self._killed = threading.Event()
        self.interrupts = 0
        self._ready_at = 0.0
        self._ended = False

    def read(self, timeout_s: float | None = None) -> Output | Display | Exited | None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            event, wait_s = self.step(until)
            if event is not None or wait_s <= 0:
                return event
            self._killed.wait(wait_s)

    def step(self, until: float | None) -> tuple[Output | Display | Exited | None, float]:
        """The next event, or None and how long to wait before asking again; 0 when `until` has passed."""
        now = time.monotonic()
        while not self._ended:
            if self._killed.is_set():
                return self._end(Exited(137, "signal", state_lost=True)), 0.0
            if self.interrupts and not self._deaf:
                return self._end(Exited(130, "error")), 0.0
            if now < self._ready_at:
                ready_at = self._ready_at
                return None, (ready_at if until is None else min(ready_at, until)) - now
            event = next(self._events, Exited(0, "ok"))
            if isinstance(event, Exited):
                return self._end(event), 0.0
            if isinstance(event, (Output, Display)):
                return event, 0.0
            self._ready_at = now + event
        raise EngineFailed("the process has ended: nothing can be read after Exited")

    def _end(self, exited: Exited) -> Exited:
        self._ended = True
        return exited

    def interrupt(self) -> None:
        self.interrupts += 1

    @property
    def killed(self) -> bool:
        return self._killed.is_set()

    def kill(self) -> None:
        self._killed.set()

    def close(self) -> None:
        self._killed.set()


class _FakeProcess(Process):
    receipt = RECEIPT

    def __init__(self, direct: FakeDirectProcess) -> None:
        self._direct = direct

    async def read(self, timeout_s: float | None = None) -> Output | Display | Exited | None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            event, wait_s = self._direct.step(until)
            if event is not None or wait_s <= 0:
                return event
            await asyncio.sleep(min(wait_s, 0.02))  # so that a kill is seen soon

    def interrupt(self) -> None:
        self._direct.interrupt()

    def kill(self) -> None:
        self._direct.kill()

    async def close(self) -> None:
        self._direct.close()


class FakeSandbox(Sandbox):
    """Files by absolute path, in memory. `lost` makes every verb fail as if the machine beneath had gone."""

    def __init__(self, backend: FakeBackend, spec: SandboxSpec = SandboxSpec()) -> None:  # noqa: B008
        self.spec = spec
        self.files: dict[str, bytes] = {}
        self.specials: set[str] = set()  # symlinks, pipes: what is there and is no regular file
        self.lost = False
        self.closed = False
        self.dropped = False
        self._backend = backend
        self._data = tuple(f"{self.places.data}/{name}" for name, _ in spec.datasets)

    async def start(self, command: Command) -> Process:
        self._alive()
        direct = FakeDirectProcess(self._backend.answer(command), deaf=self._backend.deaf)
        self._backend.processes.append(direct)
        return _FakeProcess(direct)

    async def read(self, path: str, max_bytes: int) -> bytes:
        self._alive()
        self._refuse_special(path)
        if path not in self.files:
            raise FileError(f"{path} does not exist; files() lists what is there", kind="missing")
        data = self.files[path]
        if len(data) > max_bytes:
            raise FileError(f"{path} is larger than {max_bytes:,} bytes; take parts of it with exec", kind="too_large")
        return data

    async def write(self, path: str, data: bytes) -> None:
        self._alive()
        self._refuse_special(path)
        if path.startswith(f"{self.places.data}/"):
            raise FileError(f"Permission denied: {path} is read-only", kind="denied")
        if any(path.startswith(f"{other}/") for other in self.files):
            raise FileError(f"Not a directory: a parent of {path} is a file", kind="special")
        others = sum(len(content) for name, content in self.files.items() if name != path)
        if others + len(data) > self.spec.limits.disk_bytes:
            raise FileError("No space left: the disk of the sandbox is full (SANDBOX_DISK_MB)", kind="full")
        self.files[path] = data

    async def list(self, directory: str) -> list[FileStat]:
        self._alive()
        return [
            FileStat(path, len(data), (hash(data), len(data)))
            for path, data in sorted(self.files.items())
            if path.startswith(f"{directory}/") and path not in self._data
        ] + [
            FileStat(path, 0, (), OTHER)
            for path in sorted(self.specials - self.files.keys())
            if path.startswith(f"{directory}/")
        ]

    async def close(self) -> None:
        self.closed = True

    def drop(self) -> None:
        self.closed = self.dropped = True

    def _alive(self) -> None:
        if self.lost or self.closed:
            raise SandboxLost("the sandbox is gone")

    def _refuse_special(self, path: str) -> None:
        places = self.places
        if path in (places.workspace, places.tmp) or any(name.startswith(f"{path}/") for name in self.files):
            raise FileError(f"{path} is a directory; name a file in it, files() lists them", kind="directory")
        if any(path == name or path.startswith(f"{name}/") for name in self.specials):
            raise FileError(f"{path} is not a regular file; what is in it can be had with exec alone", kind="special")
