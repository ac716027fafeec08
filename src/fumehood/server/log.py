"""Structured lines on standard error: one JSON object each, without code, secrets or control characters."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import time
import traceback
from pathlib import PurePath
from typing import Any

from .writer import Writer

MAX_TEXT = 300
_worker: str | None = None


def write(event: str, *, level: str = "info", **fields: Any) -> None:
    """One line. A log that nobody reads does not stop the server."""
    if sys.__stderr__ is not None:  # else its number may be another file's
        _errors.put(_line(event, {"level": level, **fields}))


def name(worker: str) -> None:
    """Who writes, in every line from now on."""
    global _worker
    _worker = worker


def _line(event: str, fields: dict[str, Any]) -> bytes:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    told = {
        "time": stamp,
        "event": event,
        "pid": os.getpid(),
        "worker": _worker,
        **{name: _plain(value) for name, value in fields.items()},
    }
    return json.dumps({key: value for key, value in told.items() if value is not None}).encode() + b"\n"


def _lost(count: int) -> bytes:
    return _line("log_lines_lost", {"level": "warning", "lines": count})


_errors = Writer(2, _lost)
_output = Writer(1, lambda _: b"")


def say(text: str) -> None:
    """What is for standard output, in the same way."""
    if sys.__stdout__ is not None:
        _output.put(text.encode())


class Stream(io.TextIOBase):
    """In place of standard error: what the interpreter itself says there does not wait for a reader either."""

    def write(self, text: str) -> int:
        _errors.put(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def fileno(self) -> int:
        return 2

    def writable(self) -> bool:
        return True


def where(error: BaseException) -> list[str]:
    """The places an error went through, without what was there: messages may quote a program."""
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    return [f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]


def clean(text: str) -> str:
    """As one printable line of bounded length."""
    text = text[:MAX_TEXT]
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    return [_plain(each) for each in value] if isinstance(value, list) else value


class Lines(logging.Handler):
    """What libraries log, as such lines."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        write(
            "log",
            level=record.levelname.lower(),
            logger=record.name,
            message=record.getMessage(),
            error=type(error).__name__ if error else None,
            at=where(error) if error else None,
        )
