"""Recorded steps, run again and compared. What a record does not hold is said, not guessed."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

from . import recorded, records
from .api import get_sandbox
from .datasets import identity
from .errors import BackendError, BadArgument, CommandNotAllowed, FileError, FumehoodError, IsolationUnavailable
from .recorded import Record
from .redact import Known
from .sync_session import open_session
from .types import ExecutionResult

COMPARED = ("exit_code", "reason", "stdout", "stderr", "results", "files")


class Difference(NamedTuple):
    """One thing that came out otherwise."""

    then: Any
    now: Any


class Outcome(NamedTuple):
    """One step, and how its second run compares with the first."""

    record: Record
    status: Literal["same", "differs", "not replayed"]
    notes: tuple[str, ...] = ()  # why not, or why a difference may mean nothing
    differences: Mapping[str, Difference] = {}


class Found(NamedTuple):
    """The records to replay, in the order of their steps, and what is known to be missing."""

    steps: tuple[Record, ...]
    missing: tuple[int, ...] = ()  # numbers of steps that were not stored
    unreadable: tuple[str, ...] = ()


def find(directory: Path, wanted: str) -> Found:
    """The steps of the run with this id, or the one execution whose id begins so."""
    run, unreadable = [], []
    for entry in records.load_all(directory, newest_first=False, text=wanted):
        if entry.record is None:
            unreadable.append(f"{entry.name}: {entry.error}")
        elif entry.record.get("run_id") == wanted:
            run.append({**entry.record, "damage": entry.error})
    if run:
        run.sort(key=recorded.number)
        numbers = {recorded.number(record) for record in run}
        missing = tuple(number for number in range(1, max(numbers)) if number not in numbers)
        return Found(tuple(run), missing, tuple(unreadable))
    found = [entry for entry in records.find(directory, wanted, at_most=2) if entry.record] if wanted else []
    if len(found) > 1:
        raise BadArgument(f"{wanted!r} fits several executions; give more of it (`fumehood history` lists them)")
    if not found:
        raise BadArgument(f"no run or execution {wanted!r} is stored in {directory}; `fumehood history` lists what is")
    return Found(tuple({**(entry.record or {}), "damage": entry.error} for entry in found))


def replay(found: Found, **settings: Any) -> Iterator[Outcome]:
    """Run each step again: one-shot executions afresh, the steps of a session in one session."""
    with ExitStack() as open_things:
        copies = open_things.enter_context(tempfile.TemporaryDirectory(prefix="fumehood-replay-"))
        settings = {**settings, "store_code": "never", "output_dir": copies}  # what was copied out then stays as it is
        stage = _Stage(found, settings, open_things)
        for record in found.steps:
            yield stage.step(record)


class _Stage:
    """Where the steps run: made when the first one needs it."""

    def __init__(self, found: Found, settings: Mapping[str, Any], open_things: ExitStack) -> None:
        self._found = found
        self._settings = settings
        self._open = open_things
        self._places: dict[str | None, Any] = {}  # by session; None: for one-shot executions
        self._skipped: dict[str, list[object]] = {}  # by session: steps that others may have needed
        self._known = Known()
        self._files: dict[str, Mapping[str, Any]] = {}  # datasets by path: what they are now

    def step(self, record: Record) -> Outcome:
        session = str(record.get("session_id") or "")
        obstacles = (*recorded.obstacles(record), *self._other_data(record))
        notes = tuple(self._doubts(record, session))
        result: ExecutionResult | None = None
        if not obstacles:
            try:
                result = self._run(record, session)
            except (BackendError, IsolationUnavailable):
                raise  # nothing can be replayed here
            except FumehoodError as error:
                obstacles = (str(error),)
        if result is None:
            self._skipped.setdefault(session, []).append(record.get("step"))
            return Outcome(record, "not replayed", obstacles)
        differences = _differences(record, result, self._known)
        notes += tuple(_circumstances(record, result)) if differences else ()
        return Outcome(record, "differs" if differences else "same", notes, differences)

    def _run(self, record: Record, session: str) -> ExecutionResult:
        kind = recorded.kind(record)
        if kind == "execute":
            if None not in self._places:
                self._places[None] = self._open.enter_context(get_sandbox(**self._settings))
            done: ExecutionResult = self._places[None].execute(
                record["code"], record["language"], recorded.timeout(record), args=record.get("args") or ()
            )
            return done
        if session not in self._places:
            made = open_session(
                requirements=self._packages(session), datasets=self._datasets(session), **self._settings
            )
            self._places[session] = self._open.enter_context(made)
        return _STEPS[kind](self._places[session], record)

    def _packages(self, session: str) -> list[str] | None:
        """What the session had installed, as its records say."""
        for record in self._found.steps:
            named = recorded.meta(record).get("packages")
            own = str(record.get("session_id") or "") == session and not record.get("requirements")
            if own and isinstance(named, list):
                return [str(name) for name in named]
        return None

    def _datasets(self, session: str) -> dict[str, str]:
        """What the session was lent, as far as it is still there."""
        return {
            one["name"]: one["source"]
            for record in self._found.steps
            if str(record.get("session_id") or "") == session
            for one in recorded.lent(record)
            if self._now(one["source"])
        }

    def _other_data(self, record: Record) -> Iterator[str]:
        for one in recorded.lent(record):
            now = self._now(one["source"])
            if not now:
                yield f"dataset {one['name']!r} is missing: {one['source']}"
            elif any(one.get(fact) != value for fact, value in now.items()):
                yield f"dataset {one['name']!r} changed: {one['source']} is not what it was"

    def _now(self, source: str) -> Mapping[str, Any]:
        if source not in self._files:
            self._files[source] = identity(source)
        return self._files[source]

    def _doubts(self, record: Record, session: str) -> Iterator[str]:
        if recorded.kind(record) == "execute":
            return
        before = [number for number in self._found.missing if number < recorded.number(record)]
        if before or (len(self._found.steps) == 1 and recorded.number(record) > 1):
            which = f"step {_listed(before)}" if before else "all"
            yield f"earlier steps are not replayed ({which}); it may need what they left"
        if skipped := self._skipped.get(session):
            yield f"step {_listed(skipped)} could not be replayed; it may need what that left"
        if not record.get("datasets") and "/tmp/data" in f"{record.get('code')} {record.get('command')}":
            yield "datasets are not recorded"


def _run_step(session: Any, record: Record) -> ExecutionResult:
    wanted = record.get("requirements") and (recorded.meta(record).get("packages") or record["requirements"])
    result: ExecutionResult = session.run(record["code"], recorded.timeout(record), requirements=wanted or None)
    return result


def _exec_step(session: Any, record: Record) -> ExecutionResult:
    try:
        result: ExecutionResult = session.exec(record["command"], recorded.timeout(record))
    except CommandNotAllowed as error:
        return ExecutionResult("", str(error), 126, 0.0, {"reason": "error"})
    return result


def _write_step(session: Any, record: Record) -> ExecutionResult:
    content = base64.b64decode(record["code"]) if record.get("encoding") == "base64" else record["code"]
    return _file_step(lambda: session.write(record["path"], content))


def _edit_step(session: Any, record: Record) -> ExecutionResult:
    old, new = record["args"]
    return _file_step(lambda: session.edit(record["path"], old, new))


def _file_step(change: Callable[[], object]) -> ExecutionResult:
    try:
        change()
    except FileError as error:
        return ExecutionResult("", str(error), 1, 0.0, {"reason": "error"})
    return ExecutionResult("", "", 0, 0.0, {"reason": "ok"})


_STEPS: Mapping[str, Callable[[Any, Record], ExecutionResult]] = {
    "run": _run_step,
    "exec": _exec_step,
    "write": _write_step,
    "edit": _edit_step,
}


def _differences(record: Record, result: ExecutionResult, known: Known) -> dict[str, Difference]:
    # Recorded once more, in thought: the old one was redacted and cut too.
    again = records.build(execution_id="", backend="", language="", code="", result=result, known=known)
    then, now = _comparable(record), _comparable(again)
    return {name: Difference(then[name], now[name]) for name in COMPARED if then[name] != now[name]}


def _comparable(record: Record) -> dict[str, Any]:
    result, meta = record["result"], recorded.meta(record)
    files = meta.get("files")
    return {
        "exit_code": result.get("exit_code"),
        "reason": meta.get("reason"),
        "stdout": result.get("stdout"),
        "stderr": result.get("stderr"),
        "results": meta.get("results") or [],
        "files": files if isinstance(files, dict) and any(files.values()) else {},
    }


def _circumstances(record: Record, result: ExecutionResult) -> Iterator[str]:
    then, now = recorded.meta(record), result.meta
    for name in ("runtime", "resource_limits"):
        old, new = then.get(name), now.get(name)
        if old and new and old != new:
            yield f"{name} {_short(old, new)} then, {_short(new, old)} now"
    levels = [side["isolation"].get("level") for side in (then, now) if isinstance(side.get("isolation"), Mapping)]
    if len(set(levels)) == 2:
        yield f"isolation {levels[0]} then, {levels[1]} now"


def _short(value: Any, other: Any) -> str:
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return ", ".join(f"{name} {value[name]}" for name in value if value[name] != other.get(name))
    return str(value)


def _listed(numbers: Sequence[object]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")
