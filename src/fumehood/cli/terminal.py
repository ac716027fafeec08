"""What may reach a terminal, and how it looks there. Program output is hostile until `safe` has seen it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

# C0 (but tab and newline), DEL, C1, direction marks and overrides, line separators, surrogates, invisible tags.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)
_WRITTEN_CHARS = 64 * 1024  # at once, however many lines there are
_PATIENCE_S, _PAUSE_S = 1.0, 0.2  # before the first progress, and until the next
_SURROGATES = re.compile("[\ud800-\udfff]")
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def safe(text: str) -> str:
    """The same text with everything that could drive a terminal spelled out, like `\\x1b`."""
    return _UNSAFE.sub(_spell, text.replace("\r\n", "\n").replace("\r", "\n"))


def _spell(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def well_formed(text: str) -> str:
    """The same text without lone surrogates, which strict JSON readers refuse."""
    return _SURROGATES.sub("\ufffd", text)


def as_json(value: object) -> str:
    """Lines of ASCII JSON, with nothing in them that drives a terminal."""
    return json.dumps(value, indent=2, default=str).replace("\x7f", "\\u007f")  # the rest is escaped already


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def write(stream: TextIO | None, text: str) -> None:
    """Write foreign text now: made safe for a terminal, as it is for a file or a pipe."""
    _put(stream, safe(text) if is_terminal(stream) else text)


def show(stream: TextIO | None, lines: Iterable[str]) -> None:
    """Write lines of ours: what is foreign in them has been through a `Style` or `safe`."""
    some, length = [], 0
    for line in lines:
        some.append(f"{line}\n")
        length += len(line)
        if length >= _WRITTEN_CHARS:
            _put(stream, "".join(some))
            some, length = [], 0
    _put(stream, "".join(some))


def write_over(stream: TextIO | None, line: str) -> None:
    """Put one line of ours, made safe already, where the last one stood."""
    _put(stream, f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")


class CountLine:
    """How far a count has come: one line on a terminal's standard error, once it has taken a while."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._writes = is_terminal(sys.stderr) and Style.for_stream(sys.stderr).enabled
        self._is_shown = False
        self._next = time.monotonic() + _PATIENCE_S

    def tell(self, done: int, total: int) -> None:
        if self._writes and (now := time.monotonic()) >= self._next:
            self._is_shown, self._next = True, now + _PAUSE_S
            write_over(sys.stderr, f"{self._what} {done} of {total}")

    def end(self) -> None:
        if self._is_shown:
            write_over(sys.stderr, "")


def _put(stream: TextIO | None, text: str) -> None:
    if stream is None or not text:
        return
    buffer = getattr(stream, "buffer", None)
    if buffer is None:  # a StringIO
        stream.write(text)
        return
    stream.flush()
    buffer.write(_encode(text, stream.encoding or "utf-8"))
    buffer.flush()


def _encode(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding, "surrogateescape")  # bytes that were not text come out as they went in
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace")


def error(message: str) -> None:
    write(sys.stderr, f"fumehood: error: {message}\n")


def note(message: str) -> None:
    write(sys.stderr, f"fumehood: {message}\n")


def silence(stream: TextIO | None) -> None:
    """Point a broken stream at /dev/null, so that the interpreter's last flush cannot fail."""
    if stream is None:
        return
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass


@dataclass(frozen=True, slots=True)
class Style:
    """Colours, or plain text where colours do not belong."""

    enabled: bool = False

    @classmethod
    def for_stream(cls, stream: TextIO | None, environ: Mapping[str, str] | None = None) -> Style:
        """Colours for a terminal that has them; NO_COLOR and FORCE_COLOR decide otherwise."""
        environ = os.environ if environ is None else environ
        if environ.get("NO_COLOR"):
            return cls(False)
        if environ.get("FORCE_COLOR", "0") not in ("", "0", "false"):
            return cls(True)
        return cls(is_terminal(stream) and environ.get("TERM", "dumb") not in ("", "dumb"))

    def __call__(self, text: str, *names: str) -> str:
        """`text`, made safe, in the named colours."""
        codes = ";".join(_CODES[name] for name in names)
        return f"\x1b[{codes}m{safe(text)}\x1b[0m" if self.enabled and codes else safe(text)
