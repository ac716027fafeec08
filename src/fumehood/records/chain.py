"""The hash chain over stored records: how one is sealed, and what a walk along them shows. No input or output here."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

GENESIS = "0" * 64  # `previous` of the first record
MAX_RECORD_BYTES = 16 * 1024 * 1024
HEAD_BYTES = 1024  # always the same and less than a page, so that it can be replaced in one write
NAME_HASH_DIGITS = 16
NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z_[0-9a-f]{16}\.json", re.ASCII)

_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
_OVERSIZE_TEXT = 64 * 1024
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Pruned:
    """Our own sign-off for records that are gone: numbers 1 to `count`, the last of which had `hash`."""

    count: int
    hash: str
    at: str
    broken: int = 0  # problems found among them before we removed them

    @classmethod
    def load(cls, raw: object) -> Pruned:
        if not isinstance(raw, dict):
            raise ValueError("pruned is not an object")
        return cls(_number(raw, "count"), _digest(raw, "hash"), str(raw.get("at")), _number(raw, "broken"))


@dataclass(frozen=True, slots=True)
class Head:
    """Where the chain ends, kept beside it, so that records missing at the end show too."""

    sequence: int = 0
    hash: str = GENESIS
    name: str = ""
    total_bytes: int = 0
    pruned: Pruned | None = None
    counts_blocks: bool = True  # total_bytes is what the records take on the disk; once it was their length

    @property
    def start(self) -> tuple[int, str]:
        return (self.pruned.count, self.pruned.hash) if self.pruned else (0, GENESIS)

    def dump(self) -> bytes:
        return canonical(asdict(self)).ljust(HEAD_BYTES - 1) + b"\n"

    @classmethod
    def load(cls, data: bytes) -> Head:
        """Parse, or ValueError."""
        raw = parse(data)
        pruned = raw.get("pruned")
        head = cls(
            sequence=_number(raw, "sequence"),
            hash=_digest(raw, "hash"),
            name=_name(raw, "name"),
            total_bytes=_number(raw, "total_bytes"),
            pruned=None if pruned is None else Pruned.load(pruned),
            counts_blocks=raw.get("counts_blocks") is True,
        )
        if head.sequence < head.start[0]:
            raise ValueError("more pruned than written")
        return head


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. kind: missing, changed, order, link, unreadable, head."""

    kind: str
    message: str
    name: str | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the directory: a record, or the reason why it cannot be read as one."""

    name: str
    record: dict[str, Any] | None = None
    error: str | None = None  # with a record: it parses, but is not as it was written


class _Place(NamedTuple):
    """What the chain needs to know of a record, and not its content."""

    name: str
    sequence: int
    hash: str
    previous: str


@dataclass(slots=True)
class Walk:
    """What going along some records in order found. `sequence`, `hash`: the last one that stood in its place."""

    sequence: int
    hash: str
    records: int = 0
    leftovers: int = 0  # records that a prune signed off and then had no time to remove
    problems: list[Problem] = field(default_factory=list)
    found: int | None = None  # the number of the record whose hash was looked for


def canonical(value: object) -> bytes:
    # ASCII only: a lone surrogate is the escape \udXXX, which JSON's grammar allows and Python reads back.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def parse(data: bytes) -> dict[str, Any]:
    """A JSON object, or ValueError."""
    try:
        value = json.loads(data.decode("ascii"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def seal(record: Mapping[str, Any], *, sequence: int, previous: str, stored: str) -> tuple[str, str, bytes]:
    """Give a record its place in the chain: its file name, its hash, its bytes."""
    body = _settle({**record, "sequence": sequence, "previous": previous, "stored": stored})
    body.pop("hash", None)
    digest = hashlib.sha256(canonical(body)).hexdigest()
    return file_name(stored, digest), digest, canonical({**body, "hash": digest}) + b"\n"


def file_name(stored: str, digest: str) -> str:
    return f"{stored}_{digest[:NAME_HASH_DIGITS]}.json"


def unseal(name: str, data: bytes) -> Entry:
    """Read a record back and say whether it is, byte for byte, what was written."""
    try:
        record = parse(data)
        sequence, digest = _number(record, "sequence"), _digest(record, "hash")
        _digest(record, "previous")
    except (ValueError, UnicodeDecodeError) as error:
        return Entry(name, None, f"not a record: {error}")
    if sequence < 1 or not _is_as_sealed(record, digest, data):
        return Entry(name, record, "its content does not match its hash")
    if name != file_name(str(record.get("stored")), digest):
        return Entry(name, record, "its file was renamed")
    return Entry(name, record)


def _is_as_sealed(record: Mapping[str, Any], digest: str, data: bytes) -> bool:
    """Whether the hash is that of all other bytes, and stands in its place among them."""
    before, found, after = data.partition(f'"hash":"{digest}",'.encode())  # `previous` comes after it
    if not found or not after.endswith(b"\n") or list(record) != sorted(record):
        return False
    body = hashlib.sha256(before)
    body.update(memoryview(after)[:-1])
    return body.hexdigest() == digest


def walk(entries: Iterable[Entry], head: Head, *, look_for: str | None = None) -> Walk:
    """Go along records in the order of their names, from the last one pruned."""
    start, start_hash = head.start
    at = Walk(start, start_hash, found=start if look_for == start_hash else None)
    seen: set[int] = set()
    signed_off: list[_Place] = []
    for entry in entries:
        if entry.record and not entry.error and entry.record["sequence"] <= start:
            signed_off.append(_Place(entry.name, *(entry.record[key] for key in ("sequence", "hash", "previous"))))
        else:
            _step(at, entry, seen, head.sequence, look_for)
    _check_leftovers(at, signed_off, head)
    placed = sorted(number for number in seen if start < number <= at.sequence)
    at.problems += [_missing(a + 1, b - 1) for a, b in pairwise([start, *placed]) if b - a > 1]
    return at


def end(at: Walk, head: Head) -> None:
    """Compare where the walk ended with where the chain must end."""
    if at.sequence < head.sequence:
        at.problems.append(_missing(at.sequence + 1, head.sequence))
    elif at.hash != head.hash:
        what = f"record {at.sequence} is not the one that was written last: it or the head file was replaced"
        at.problems.append(Problem("head", what, sequence=at.sequence))


def _step(at: Walk, entry: Entry, seen: set[int], last: int, look_for: str | None) -> None:
    record, name = entry.record, entry.name
    if record is None:
        at.problems.append(Problem("unreadable", f"{name}: {entry.error}", name))
        return
    at.records += 1
    number, previous, digest = record["sequence"], record["previous"], record["hash"]

    def problem(kind: str, what: str) -> None:
        at.problems.append(Problem(kind, f"record {number} ({name}) {what}", name, number))

    if entry.error:
        problem("changed", f"was changed: {entry.error}")
    elif digest == look_for:
        at.found = number
    if record.get("recovered"):
        problem("head", f"says: {record['recovered']}; records before it may be missing")
    if number > last:
        problem("order", "was not written here")
        return
    if number <= at.sequence:
        problem("order", "has the number of another record" if number in seen else "is not in its place")
    elif number == at.sequence + 1 or not entry.error:  # the number in a changed record is not to be trusted
        if number == at.sequence + 1 and previous != at.hash:
            problem("link", "does not follow the record before it: one of the two was replaced")
        at.sequence, at.hash = number, digest
    seen.add(number)


def _check_leftovers(at: Walk, places: list[_Place], head: Head) -> None:
    """Oldest go first, so what an interrupted prune leaves runs up to the sign-off without a gap."""
    expected = head.start
    for place in reversed(places):
        if (place.sequence, place.hash) == expected:
            expected = (place.sequence - 1, place.previous)
            at.leftovers += 1
        else:
            what = f"record {place.sequence} ({place.name}) does not belong here: that number was pruned"
            at.problems.append(Problem("order", what, place.name, place.sequence))


def _missing(first: int, last: int) -> Problem:
    what = f"record {first} is missing" if first == last else f"records {first} to {last} are missing"
    return Problem("missing", what, sequence=first)


def _settle(record: dict[str, Any]) -> dict[str, Any]:
    """The record as it reads back from JSON, whatever a caller put in; cut if nobody could read it back."""
    try:
        text = json.dumps(record, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(_plain(record))
    if len(text) > MAX_RECORD_BYTES:
        text = json.dumps(_plain({**record, "oversize": True}, max_text=_OVERSIZE_TEXT))
    if len(text) > MAX_RECORD_BYTES:
        scalars = {k: v for k, v in record.items() if v is None or isinstance(v, (str, int, float))}
        text = json.dumps(_plain({**scalars, "oversize": True}, max_text=_OVERSIZE_TEXT))
    settled: dict[str, Any] = json.loads(text)
    return settled


def _plain(value: object, *, max_text: int | None = None, above: tuple[int, ...] = ()) -> Any:
    if len(above) > _MAX_DEPTH or id(value) in above:
        return "…"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 1024 else hex(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    inside = (*above, id(value))
    if isinstance(value, Mapping):
        return {_text(k, max_text): _plain(v, max_text=max_text, above=inside) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, max_text=max_text, above=inside) for item in value]
    return _text(value, max_text)


def _text(value: object, max_text: int | None) -> str:
    if isinstance(value, str):
        text = str(value)
    elif isinstance(value, (bytes, bytearray)):
        text = value.decode("utf-8", "backslashreplace")
    else:
        text = f"<{type(value).__name__}>"  # its repr may be anything, a secret included
    return text if max_text is None else text[:max_text]


def _number(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"no valid {key}")
    return value


def _digest(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ValueError(f"no valid {key}")
    return value


def _name(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or (value and not NAME.fullmatch(value)):
        raise ValueError(f"no valid {key}")
    return value
