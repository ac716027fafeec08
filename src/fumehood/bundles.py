"""What a run displayed: MIME bundles, taken from a program that may have put anything in them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

MAX_BUNDLES = 200
MAX_BYTES = 32 * 1024 * 1024  # of all bundles of one run
MAX_VALUES = 400_000  # numbers, texts, lists and mappings in them: small as text, large in memory
_MAX_DEPTH = 32
_MAX_MIME_CHARS = 200
_NODE_BYTES = 8  # what a number, a comma or a bracket counts for

# RFC 6838, and parameters as RFC 9110 writes them. Keys are shown in lines of text, where values are not.
_NAME = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MIME = re.compile(rf"{_NAME}/{_NAME}(?: ?; ?{_TOKEN}=(?:{_TOKEN}|\"[ !#-\[\]-~]*\"))*")


class Bundles:
    """Those kept of one run. What is over the caps is dropped, and so is a form that has no MIME type or is no JSON."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []
        self.truncated = False
        self.dropped = 0  # forms
        self.size = 0
        self._values = 0

    def add(self, data: object) -> dict[str, Any] | None:
        """What was kept of it."""
        if len(self.kept) >= MAX_BUNDLES or self.size >= MAX_BYTES or self._values >= MAX_VALUES:
            self.truncated = True
            return None
        meter = _Meter(MAX_BYTES - self.size, MAX_VALUES - self._values)
        bundle = meter.cleaned(data)
        if bundle is None:
            self.truncated = True
            return None
        self.dropped += meter.dropped
        if bundle:
            self.kept.append(bundle)
            self.size = MAX_BYTES - meter.room
            self._values = MAX_VALUES - meter.values
        return bundle or None


class _TooMuch(Exception):
    pass


class _NotJson(Exception):
    pass


def clean(data: object, room: int = MAX_BYTES) -> tuple[dict[str, Any] | None, int]:
    """The bundle without what is no JSON, and its size; None where it is larger than `room` bytes."""
    meter = _Meter(room, MAX_VALUES)
    bundle = meter.cleaned(data)
    return bundle, 0 if bundle is None else room - meter.room


def _is_mime(key: object) -> bool:
    return isinstance(key, str) and len(key) <= _MAX_MIME_CHARS and _MIME.fullmatch(key) is not None


class _Meter:
    def __init__(self, room: int, values: int) -> None:
        self.room = room
        self.values = values
        self.dropped = 0

    def cleaned(self, data: object) -> dict[str, Any] | None:
        if not isinstance(data, Mapping):
            return {}
        bundle = {}
        try:
            for mime, value in data.items():
                if not _is_mime(mime):
                    self.dropped += 1
                    continue
                try:
                    bundle[mime] = self.copied(value, 0)
                except _NotJson:
                    self.dropped += 1
        except _TooMuch:
            return None
        return bundle

    def copied(self, value: object, depth: int) -> Any:
        self.values -= 1
        self._take(_NODE_BYTES)
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int):
            self._take(value.bit_length() // 3)
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        if depth < _MAX_DEPTH:
            if isinstance(value, (list, tuple)):
                return [self.copied(item, depth + 1) for item in value]
            if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
                return {self._text(key): self.copied(item, depth + 1) for key, item in value.items()}
        raise _NotJson

    def _text(self, text: str) -> str:
        self._take(len(text))
        if text.isascii():
            return text
        data = text.encode("utf-8", "replace")  # a lone surrogate could be written nowhere
        self._take(len(data) - len(text))
        return data.decode()

    def _take(self, size: int) -> None:
        self.room -= size
        if self.room < 0 or self.values < 0:
            raise _TooMuch
