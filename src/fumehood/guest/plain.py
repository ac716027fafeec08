"""Any value as valid JSON of bounded size, whatever the program made of it and of the json module."""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # see the worker's

_DEPTH = 50
_NODES = 200_000
_INT_BITS = 1024  # longer ones cannot be read everywhere
_CUT = 1 << 16

_quote: Callable[[str], str] = repr


def install() -> None:
    """Take now what the program could replace."""
    import json.encoder

    global _quote
    _quote = json.encoder.encode_basestring


def plain(value: Any) -> Any:
    """The value in JSON's own types; what JSON cannot say as a string, null for what is not a number."""
    return _Plain().of(value)


class _Plain:
    def __init__(self) -> None:
        self._path: set[int] = set()
        self._nodes = 0

    def of(self, value: Any) -> Any:
        self._nodes += 1
        if id(value) in self._path or len(self._path) > _DEPTH or self._nodes > _NODES:
            return "..."
        try:
            return self._of(value)
        except Exception:
            return "..."

    def _of(self, value: Any) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            value = int.__int__(value)
            return value if value.bit_length() <= _INT_BITS else hex(value)
        if isinstance(value, float):
            value = float.__float__(value)
            return value if value - value == 0 else None
        if isinstance(value, (bytes, bytearray)):
            return value.decode("utf-8", "backslashreplace")
        if type(value).__name__ in ("NaTType", "NAType"):
            return None
        self._path.add(id(value))
        try:
            if isinstance(value, dict):
                return {str.__str__(str(key)): self.of(item) for key, item in list(value.items())}
            if isinstance(value, (list, tuple, set, frozenset)):
                return [self.of(item) for item in list(value)]
            for name in ("tolist", "to_list", "isoformat"):
                method = getattr(type(value), name, None)
                if callable(method):
                    return self.of(method(value))
            return str.__str__(str(value))
        finally:
            self._path.discard(id(value))


def to_json(value: Any) -> str:
    """JSON of what `plain` gives, without a word to the program's json module."""
    if isinstance(value, str):
        return _quote(value)
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ",".join([f"{_quote(key)}:{to_json(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([to_json(item) for item in value]) + "]"
    return repr(value)


def fit(forms: dict[str, Any], limit: int) -> bytes:
    """The bundle as JSON of about that size at most: the biggest forms go first, and a note says so."""
    encoded = {mime: to_json(form).encode("utf-8", "replace") for mime, form in forms.items()}
    notes = []
    while sum(map(len, encoded.values())) > limit and encoded:
        mime = max(encoded, key=lambda name: len(encoded[name]))
        size = len(encoded.pop(mime))
        notes.append(f"... ({mime} left out: {size:,} bytes are too many)")
        if mime == "text/plain" and limit > 8 * _CUT:
            notes[-1:] = [forms[mime][:_CUT], f"... ({size:,} bytes in all)"]
    if notes:
        kept = [forms["text/plain"]] if "text/plain" in encoded else []
        encoded["text/plain"] = to_json("\n".join(kept + notes)).encode("utf-8", "replace")
    names = {mime: _quote(mime).encode("utf-8", "replace") for mime in encoded}
    return b"{" + b",".join([names[mime] + b":" + form for mime, form in encoded.items()]) + b"}"
