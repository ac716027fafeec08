"""Structured lines on standard error: one JSON object each, without code, secrets or control characters."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from pathlib import PurePath
from typing import Any

MAX_TEXT = 300
_lock = threading.Lock()


def write(event: str, **fields: Any) -> None:
    """One line. A log that nobody reads does not stop the server."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    told = {
        "time": stamp,
        "event": event,
        **{name: _plain(value) for name, value in fields.items() if value is not None},
    }
    line = json.dumps(told, ensure_ascii=True) + "\n"
    try:
        with _lock:
            sys.stderr.write(line)
            sys.stderr.flush()
    except (OSError, ValueError):
        pass


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
