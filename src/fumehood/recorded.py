"""What a record says of one step, and whether that is enough to run it again."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from .redact import MARK

KINDS = ("execute", "run", "exec", "write", "edit")
_CUT = "cut for the record)"

Record = Mapping[str, Any]


def kind(record: Record) -> str:
    return str(record.get("kind") or "execute")


def meta(record: Record) -> Mapping[str, Any]:
    result = record.get("result")
    found = result.get("meta") if isinstance(result, dict) else None
    return found if isinstance(found, dict) else {}


def number(record: Record) -> int:
    step = record.get("step")
    return step if isinstance(step, int) else 0


def timeout(record: Record) -> float | None:
    seconds = record.get("timeout")
    return seconds if isinstance(seconds, (int, float)) and seconds > 0 else None


def obstacles(record: Record) -> Iterator[str]:
    """What was left out of the record, on purpose or for its size."""
    if record.get("damage"):
        yield "its record was changed after it was written"
    if kind(record) not in KINDS:
        yield f"fumehood does not know steps of the kind {kind(record)!r}"
        return
    if not _well_shaped(record):
        yield "its record is not complete"
        return
    said = [record["code"], *(record.get("args") or ()), *(record.get("command") or ()), str(record.get("path") or "")]
    if any(MARK in text for text in said):
        yield "a secret in it was redacted"
    elif _bytes(record) != record.get("code_bytes", _bytes(record)) or any(text.endswith(_CUT) for text in said):
        yield "its text was cut for the record, or was not UTF-8"
    if record.get("env"):
        yield f"the values of env are not stored: {', '.join(map(str, record['env']))}"
    if record.get("stdin_bytes"):
        yield "its standard input is not stored"
    if record.get("files"):
        yield f"the files it was given are not stored: {', '.join(map(str, record['files']))}"
    if record.get("oversize"):
        yield "its record was cut"
    if meta(record).get("reason") == "cancelled":
        yield "it was cancelled by its caller"
    if meta(record).get("skipped"):
        yield "its sandbox had not started"
    if meta(record).get("lost"):
        yield "its sandbox went away, or did not start"


def _well_shaped(record: Record) -> bool:
    args, command = record.get("args") or [], record.get("command")
    texts = isinstance(args, list) and all(isinstance(arg, str) for arg in args)
    return (
        texts
        and isinstance(record.get("code"), str)
        and isinstance(record.get("language"), str)
        and isinstance(record.get("result"), dict)
        and (kind(record) != "exec" or (isinstance(command, list) and all(isinstance(part, str) for part in command)))
        and (kind(record) not in ("write", "edit") or isinstance(record.get("path"), str))
        and (kind(record) != "edit" or len(args) == 2)
        and _bytes(record) >= 0
    )


def lent(record: Record) -> Iterator[Mapping[str, Any]]:
    """The datasets it had."""
    named = record.get("datasets")
    for one in named if isinstance(named, list) else ():
        if isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("source"), str):
            yield one


def _bytes(record: Record) -> int:
    """-1 for what claims to be base64 and is not."""
    if record.get("encoding") == "base64":
        try:
            base64.b64decode(record["code"], validate=True)
        except (binascii.Error, ValueError):
            return -1
    return len(record["code"].encode("utf-8", "surrogatepass"))
