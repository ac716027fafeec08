"""How single settings are parsed, compared and shown.

A parser takes a string or a native value and raises ValueError(what was expected).
A rule takes the value below, the one ./fumehood.yaml asks for, and all values below; it gives the reason to
refuse, or None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .languages import NAMES, lookup

Parser = Callable[[object], Any]
Rule = Callable[[Any, Any, Mapping[str, Any]], str | None]

_MAX_INT = 2**31 - 1
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_SIZES = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, str)):
        found = _BOOLEANS.get(str(value).strip().lower()) if not isinstance(value, int) or value in (0, 1) else None
        if found is not None:
            return found
    raise ValueError("true or false (also 1/0, yes/no, on/off)")


def integer(low: int, high: int = _MAX_INT) -> Parser:
    def parse(value: object) -> int:
        if isinstance(value, str):
            digits = value.strip()
            if digits.isascii() and digits.isdigit() and len(digits) <= 18:
                value = int(digits)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise ValueError(f"a whole number from {low} to {high}")

    return parse


def number(high: float) -> Parser:
    def parse(value: object) -> float:
        if isinstance(value, str) and "_" not in value:
            try:
                value = float(value)
            except ValueError:
                pass
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= high:
            return float(value)
        raise ValueError(f"a number greater than 0 and at most {high:g}")

    return parse


def text(value: object) -> str:
    if isinstance(value, str) and value.strip() and value.isprintable():
        return value.strip()
    raise ValueError("text on one line")


class Secret:
    """Text that no message, record or `repr` shows."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "(set, not shown)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def secret(value: object) -> Secret:
    if isinstance(value, Secret):
        return value
    if isinstance(value, str) and 0 < len(word := value.strip()) <= 4096 and all("!" <= ch <= "~" for ch in word):
        return Secret(word)
    raise ValueError("one word of printable ASCII")


def url(value: object) -> str:
    """Of a server: what it may not have is what could be a secret."""
    if isinstance(value, str) and (given := value.strip()).isprintable():
        from urllib.parse import urlsplit  # for those who set one

        try:
            parts = urlsplit(given)
            is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            is_one = False
        if is_one and "@" not in parts.netloc and not set("?# ") & set(given):
            return given.rstrip("/")
    raise ValueError("http(s)://host:port, without a user, a query or a #token, which has a setting of its own")


def path(value: object) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and value.strip() and "\0" not in value:
        return value
    raise ValueError("a path")


def backend(value: object) -> str:
    if isinstance(value, str):
        name = value.strip()
        if name.isascii() and len(name) <= 64 and name.replace("-", "_").replace(".", "_").isidentifier():
            return name
    raise ValueError("the name of a backend, such as local or docker")


def size(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if 0 < value < 10**18 else ""
    if isinstance(value, str):
        written_size = value.strip().lower()
        if size_bytes(written_size) > 0:
            return written_size
    raise ValueError("a number greater than 0 with an optional b, k, m or g, such as 256m")


def size_bytes(value: str) -> int:
    """0 for what is not a size."""
    digits, unit = (value[:-1], value[-1:]) if value[-1:] in _SIZES else (value, "b")
    return int(digits) * _SIZES[unit] if digits.isascii() and digits.isdigit() and len(digits) <= 18 else 0


def choice(*allowed: str) -> Parser:
    def parse(value: object) -> str:
        if isinstance(value, str) and value.strip().lower() in allowed:
            return value.strip().lower()
        close = close_match(value, allowed)
        raise ValueError(f"one of {', '.join(allowed)}" + (f" (did you mean {close}?)" if close else ""))

    return parse


def optional(inner: Parser) -> Parser:
    def parse(value: object) -> Any:
        if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
            return None
        try:
            return inner(value)
        except ValueError as error:
            raise ValueError(f"{error}, or none") from None

    return parse


def _items(value: object) -> tuple[str, ...] | None:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(item, str) for item in value):
        return None
    items = sorted(value) if isinstance(value, (set, frozenset)) else value
    return tuple(dict.fromkeys(item.strip() for item in items if item.strip()))


def modules(value: object) -> tuple[str, ...]:
    names = () if value == "none" else _items(value)
    if names is None or not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ValueError("a list of module names, such as os,subprocess")
    return names


def commands(value: object) -> tuple[str, ...]:
    """Entries such as `ls` or `git log *`: a program and patterns of its arguments."""
    entries = () if value == "none" else _items(value)
    if entries is None or not all(entry.isprintable() for entry in entries):
        raise ValueError("a list of commands, such as python,ls,git log *, or * for all, or nothing for none")
    return entries


def packages(value: object) -> tuple[str, ...]:
    names = () if value == "none" else _items(value)
    if names is None or not all(
        name == "*" or name.replace("-", "_").replace(".", "_").isidentifier() for name in names
    ):
        raise ValueError("a list of package names, such as numpy,polars, or * for all, or nothing for none")
    return names


def named_packages(value: object) -> tuple[str, ...]:
    names = packages(value)
    if "*" in names:
        raise ValueError("a list of package names, such as numpy,polars; each is named, so * is not taken")
    return names


def languages(value: object) -> tuple[str, ...]:
    found = [lookup(name) for name in _items(value) or ()]
    names = tuple(dict.fromkeys(language.name for language in found if language is not None))
    if not names or None in found:
        raise ValueError(f"a list of at least one of {', '.join(NAMES)}")
    return names


def _lower(old: Any, new: Any, _: Mapping[str, Any]) -> str | None:
    return None if new <= old else "it may only be lowered there"


def _lower_size(old: str, new: str, _: Mapping[str, Any]) -> str | None:
    return None if size_bytes(new) <= size_bytes(old) else "it may only be lowered there"


def _lower_than_timeout(old: float | None, new: float | None, below: Mapping[str, Any]) -> str | None:
    ceiling = below["timeout_sec"] if old is None else old
    return None if new is not None and new <= ceiling else f"it may only be lowered there (here to at most {ceiling:g})"


def _lower_or_none(old: float | None, new: float | None, _: Mapping[str, Any]) -> str | None:
    return None if old is None or (new is not None and new <= old) else "it may only be lowered there"


def ranked(*order: str | None) -> Rule:
    """Only towards the end of `order`."""

    def rule(old: Any, new: Any, _: Mapping[str, Any]) -> str | None:
        return None if order.index(new) >= order.index(old) else "it may only be made stricter there"

    return rule


def _isolation(old: str, new: str, _: Mapping[str, Any]) -> str | None:
    # auto may give anything: as the new value it promises the weakest, as the old one it may have been the strongest.
    promised = {"auto": 0, "process": 0, "confined": 1, "sealed": 2}[new]
    possible = {"process": 0, "confined": 1, "sealed": 2, "auto": 2}[old]
    return None if promised >= possible else "only a level that is at least as strict is accepted there"


def _never(*_: Any) -> str:
    return "it is not accepted there"


def _off(_: bool, new: bool, __: Mapping[str, Any]) -> str | None:
    return "it may only be switched off there" if new else None


def _on(_: bool, new: bool, __: Mapping[str, Any]) -> str | None:
    return None if new else "it may only be switched on there"


def _subset(old: tuple[str, ...], new: tuple[str, ...], _: Mapping[str, Any]) -> str | None:
    return None if set(new) <= set(old) else "entries may only be taken away there"


def _subset_or_all(old: tuple[str, ...], new: tuple[str, ...], _: Mapping[str, Any]) -> str | None:
    return None if "*" in old or set(new) <= set(old) else "entries may only be taken away there"


def _superset(old: tuple[str, ...], new: tuple[str, ...], _: Mapping[str, Any]) -> str | None:
    return None if set(new) >= set(old) else "entries may only be added there"


NEVER: Rule = _never
LOWER: Rule = _lower
LOWER_SIZE: Rule = _lower_size
LOWER_THAN_TIMEOUT: Rule = _lower_than_timeout
ISOLATION: Rule = _isolation
OFF: Rule = _off
ON: Rule = _on
LOWER_OR_NONE: Rule = _lower_or_none
SUBSET: Rule = _subset
SUBSET_OR_ALL: Rule = _subset_or_all
SUPERSET: Rule = _superset


def written(value: object) -> str:
    """A value as one would write it in the environment."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value) or "none"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def shown(value: object) -> str:
    """A value from anywhere, short and harmless in a message."""
    try:
        text = repr(value)
    except Exception:  # an int of 5,000 digits, or a hostile __repr__
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def close_match(name: object, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    if not isinstance(name, str) or len(name) > 80:
        return None
    import difflib  # only needed for a message

    candidates = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), candidates, n=1)
    return candidates[matches[0]] if matches else None
