"""What a call left behind: files created, changed and deleted, and copies of those meant for the caller."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import logging
import posixpath
from collections.abc import Iterable
from typing import Any, NamedTuple

from .backends.base import Places, Sandbox
from .copies import Copies
from .errors import FileError
from .handed import Handed
from .offload import offload
from .passed_over import FILE, MORE, UNREADABLE
from .paths import refusal, shown
from .thread_pool import aside
from .types import FileStat

MAX_COPIED = 20  # files per call
MAX_FILE_BYTES = 100 * 1024 * 1024
MAX_CALL_BYTES = 500 * 1024 * 1024
MAX_LISTED = 20
MAX_NAMED = 1000  # per list of created, changed and deleted files
MAX_NAMED_CHARS = 256 * 1024  # of all names in these lists
MAX_WARNINGS = 20  # files that can never be copied, of which each is named
PROGRESS_BYTES = 50 * 1024 * 1024
IMAGES = (".png", ".jpg", ".jpeg", ".svg")
LEFT_INSIDE = (
    *(".pkl", ".pickle", ".joblib", ".pt", ".pth", ".onnx", ".h5"),
    *(".safetensors", ".npy", ".npz", ".bin"),
)

_FEW = 1000  # files: so many are compared in little more time than a thread takes
_MAX_OTHERS = 3000  # more has only a container whose guest lies

_log = logging.getLogger("fumehood.outputs")

Listing = dict[str, FileStat]


class Difference(NamedTuple):
    created: list[str]
    changed: list[str]
    deleted: list[str]


def compare(before: Listing, after: Listing) -> Difference:
    """By version: a file rewritten with the same content counts as changed."""
    return Difference(
        sorted(path for path in after if path not in before),
        sorted(path for path, stat in after.items() if path in before and before[path].version != stat.version),
        sorted(path for path in before if path not in after),
    )


class Seen(NamedTuple):
    """What is in a sandbox beside the datasets."""

    files: Listing  # regular ones; with a `why`, what cannot be read
    others: list[FileStat]  # that are no regular files, or were not looked into


async def listing(sandbox: Sandbox) -> Seen:
    places = sandbox.places
    seen = Seen({}, [])
    for directory in (places.workspace, places.tmp):
        for stat in await sandbox.list(directory):
            if stat.why in ("", UNREADABLE):
                seen.files[stat.path] = stat
            elif len(seen.others) < _MAX_OTHERS:
                seen.others.append(stat)
    return seen


async def in_order(found: list[FileStat]) -> list[FileStat]:
    """Files before what is none; first of all that there are more."""
    return _in_order(found) if len(found) <= _FEW else await offload(_in_order, found)


async def for_readers(found: list[FileStat]) -> list[FileStat]:
    """The same, with a `why` for each that would be refused to who asks for it."""
    return _for_readers(found) if len(found) <= _FEW else await offload(_for_readers, found)


def _for_readers(found: list[FileStat]) -> list[FileStat]:
    return _in_order([stat._replace(why=stat.why or refusal(stat.path) or "") for stat in found])


def _in_order(found: list[FileStat]) -> list[FileStat]:
    return sorted(found, key=lambda stat: (stat.why not in ("", MORE), stat.path))


class Described(NamedTuple):
    """What a call did to the files."""

    meta: dict[str, Any]
    fresh: set[str]  # created or changed
    present: list[FileStat]  # in the output directory, what is fresh first


class Choice(NamedTuple):
    """Which output files are copied now."""

    copied: list[FileStat]
    late: int  # files for which there is no room in this call
    never: list[tuple[str, str]]  # path and why, of the first ones that are new
    more_never: int
    done: dict[str, tuple[int, ...]]
    failed: dict[str, tuple[int, ...]]

    def with_others(self, others: list[FileStat]) -> Choice:
        """Which are never copied either."""
        never = [*((stat.path, stat.why) for stat in others if stat.why == MORE), *self.never]
        never += [(stat.path, stat.why) for stat in others if stat.why != MORE]
        named = never[:MAX_WARNINGS]
        return self._replace(never=named, more_never=self.more_never + len(never) - len(named))


class Outputs:
    """Follows the files of one sandbox from call to call."""

    def __init__(self, copies: Copies, io_handler: object = None) -> None:
        self.copied_bytes = 0  # of the last call
        self._copies = copies
        self._io = io_handler
        self._telling = asyncio.Lock()
        self._before: Listing = {}
        self._others: set[FileStat] = set()  # in the output directory
        self._done: dict[str, tuple[int, ...]] = {}  # what was copied or never can be, by version
        self._failed: dict[str, tuple[int, ...]] = {}  # what is tried again

    @property
    def directory(self) -> str:
        """Where copies go on this machine."""
        return self._copies.directory

    def beside(self) -> Outputs:
        """For another sandbox, with the same directory and handler."""
        return Outputs(self._copies, self._io)

    async def begin(self, sandbox: Sandbox) -> None:
        """A new sandbox: what it came with is nobody's output."""
        self._done, self._failed = {}, {}
        self._before, others = await listing(sandbox)
        self._others = set(_in_outputs(self._before, others, sandbox.places))

    async def note_written(self, sandbox: Sandbox, path: str) -> None:
        """The caller wrote this file itself: no run did that."""
        for stat in await sandbox.list(posixpath.dirname(path)):
            if stat.path == path and not stat.why:
                self._before[path] = stat

    async def collect(self, sandbox: Sandbox, handed: Handed | None = None) -> dict[str, Any]:
        """What to add to the result's meta after a call. Files go to `handed` if there is one, and are not copied."""
        after, others = await listing(sandbox)
        before, self._before = self._before, after
        others = _in_outputs(after, others, sandbox.places)
        known, self._others = self._others, set(others)
        others = [stat for stat in others if stat not in known or stat.why == MORE]
        root = sandbox.places.output
        is_small = len(before) + len(after) <= _FEW
        meta, fresh, present = (
            _described(before, after, root) if is_small else await offload(_described, before, after, root)
        )
        if handed is not None:
            await self._hand_over(sandbox, handed, [*(stat for stat in present if stat.path in fresh), *others])
            return meta
        choice = self._choose(present, root) if is_small else await offload(self._choose, present, root)
        copied, warnings = await self._copy(sandbox, choice.with_others(others), root)
        if copied:
            meta["copied_files"] = copied
        if warnings:
            meta["output_warnings"] = warnings
        return meta

    def unchanged(self, places: Places) -> dict[str, Any]:
        """The same for a call that ran nothing."""
        self.copied_bytes = 0
        beneath = f"{places.output}/"
        present = [path for path in self._before if path.startswith(beneath)]
        files = {name: list[str]() for name in Difference._fields}
        return {"files": files, **_listed(heapq.nsmallest(MAX_LISTED, present), len(present), places.output)}

    async def _hand_over(self, sandbox: Sandbox, handed: Handed, fresh: list[FileStat]) -> None:
        await handed.take(sandbox, await in_order(fresh))
        self.copied_bytes = handed.size
        for file in handed.files:
            await self._show(file.path)

    def _choose(self, present: list[FileStat], root: str) -> Choice:
        copied: list[FileStat] = []
        never: list[tuple[str, str]] = []
        late = more_never = tried_bytes = 0
        done: dict[str, tuple[int, ...]] = {}
        failed = {stat.path: stat.version for stat in present if self._failed.get(stat.path) == stat.version}
        # What failed before comes last: it may fail for ever.
        for stat in sorted(present, key=lambda stat: stat.path in failed):
            if self._done.get(stat.path) == stat.version:
                done[stat.path] = stat.version
            elif stat.path.lower().endswith(LEFT_INSIDE):
                continue
            elif why := self._never(stat, root):
                done[stat.path] = stat.version
                if len(never) < MAX_WARNINGS:
                    never.append((stat.path, why))
                else:
                    more_never += 1
            elif len(copied) >= MAX_COPIED or tried_bytes + stat.size > MAX_CALL_BYTES:
                late += 1
            else:
                copied.append(stat)
                tried_bytes += stat.size
        return Choice(copied, late, never, more_never, done, failed)

    async def _copy(self, sandbox: Sandbox, choice: Choice, root: str) -> tuple[list[str], list[str]]:
        copied: list[str] = []
        warnings = [_not_copied(path, why) for path, why in choice.never]
        if choice.more_never:
            warnings.append(
                f"{choice.more_never} more files in {root} were not copied: they are too large, badly named or no"
                " regular files"
            )
        self.copied_bytes = 0
        self._done, self._failed = choice.done, choice.failed  # nothing is remembered of files that are gone
        for stat in choice.copied:
            try:
                local = await self._copy_one(sandbox, stat, root)
            except (FileError, OSError, ValueError) as error:
                self._failed[stat.path] = stat.version
                warnings.append(_not_copied(stat.path, _why(error)))
                continue
            self._done[stat.path] = stat.version
            copied.append(local)
            await self._show(local)
        if choice.late:
            warnings.append(
                f"{choice.late} more files in {root} were not copied: at most {MAX_COPIED} files and"
                f" {MAX_CALL_BYTES // 1_048_576} MB come back with one call, the rest with the next ones"
            )
        return copied, warnings

    def _never(self, stat: FileStat, root: str) -> str | None:
        """Why this file cannot be copied, now or later."""
        if stat.why:
            return stat.why
        if stat.size > MAX_FILE_BYTES:
            return f"larger than {MAX_FILE_BYTES // 1_048_576} MB"
        try:
            self._copies.check(stat.path.removeprefix(f"{root}/"))
        except ValueError as error:
            return str(error)
        return None

    async def _copy_one(self, sandbox: Sandbox, stat: FileStat, root: str) -> str:
        relative = stat.path.removeprefix(f"{root}/")
        if stat.size > PROGRESS_BYTES:
            await self.tell("send_progress", f"copying {shown(relative)} ({stat.size // 1_048_576} MB)")
        data = await sandbox.read(stat.path, MAX_FILE_BYTES)
        local = await aside(self._copies.save, relative, data)
        self.copied_bytes += len(data)
        return local

    async def _show(self, local: str) -> None:
        if local.lower().endswith(IMAGES):
            await self.tell("send_visualization", local)

    async def tell(self, verb: str, text: str) -> None:
        """Call the io handler if it has that verb; whatever it does, the session goes on."""
        method = getattr(self._io, verb, None)
        if not callable(method):
            return
        try:
            async with self._telling:  # in their order, also from threads
                # A synchronous one may take its time: in this loop it would stop every session.
                answer = method(text) if inspect.iscoroutinefunction(method) else await aside(method, text)
                if inspect.isawaitable(answer):
                    await answer
        except Exception:
            _log.warning("the io handler's %s failed", verb, exc_info=True)


def _in_outputs(files: Listing, others: list[FileStat], places: Places) -> list[FileStat]:
    """Those that are in the place of output files."""
    root = places.output
    found = [stat for stat in others if stat.path in (places.tmp, root) or stat.path.startswith(f"{root}/")]
    if root in files:
        found.append(files[root]._replace(why=FILE))
    return sorted(found)


def _described(before: Listing, after: Listing, root: str) -> Described:
    difference = compare(before, after)
    fresh = {*difference.created, *difference.changed}
    present = sorted(
        (stat for path, stat in after.items() if path.startswith(f"{root}/")),
        key=lambda stat: (stat.path not in fresh, stat.path),
    )
    files, cut = _named(difference)
    meta = {"files": files, **_listed([stat.path for stat in present[:MAX_LISTED]], len(present), root)}
    if cut:
        meta["files_truncated"] = True
    return Described(meta, fresh, present)


def _listed(first: Iterable[str], total: int, root: str) -> dict[str, Any]:
    return {"output_files": [shown(path.removeprefix(f"{root}/")) for path in first], "total_output_files": total}


def _named(difference: Difference) -> tuple[dict[str, list[str]], bool]:
    files: dict[str, list[str]] = {}
    room, cut = MAX_NAMED_CHARS, False
    for name, paths in difference._asdict().items():
        names = files[name] = []
        for path in paths[:MAX_NAMED]:
            names.append(shown(path))
            room -= len(names[-1])
            if room < 0:
                names.pop()
                break
        cut = cut or len(names) < len(paths)
    return files, cut


def _not_copied(path: str, why: str) -> str:
    if why == MORE:
        return f"not all of {shown(path)} was looked through: {why}"
    return f"{shown(path)} was not copied: {why.replace(path, 'it')}"


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
