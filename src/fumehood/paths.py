"""Which paths in a sandbox a caller may name."""

from __future__ import annotations

import os
import re

from .backends.base import Places
from .errors import BadArgument, FileError
from .one_line import one_line, printable

INVALID = "Invalid path: must be /tmp/* or /workspace/*"
_MAX_PART_BYTES = 255
_MAX_BYTES = 1024
_MAX_SHOWN_CHARS = 1024
# Direction marks and overrides, invisible tags: a listing of this machine would show another name.
_DISGUISING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


def checked(path: object, places: Places) -> str:
    """A file's path as the program sees it."""
    given = shape(path)
    for prefix, place in _prefixes(places):
        if given.startswith(f"{prefix}/"):
            return place + given[len(prefix) :]
    raise FileError(INVALID, kind="invalid")


def checked_directory(path: object, places: Places) -> str:
    """The same for a directory, which may be one of the places themselves."""
    if isinstance(path, str) and len(path) > 1:
        path = path.removesuffix("/")
    for prefix, place in _prefixes(places):
        if path == prefix:
            return place
    return checked(path, places)


def shape(path: object) -> str:
    """What no path may be, wherever the places are."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str):
        raise BadArgument(f"path must be a str such as '/workspace/a.py', not {type(path).__name__}")
    if not path.startswith("/") or any(part in ("", ".", "..") for part in path[1:].split("/")) or not printable(path):
        raise FileError(INVALID, kind="invalid")
    if why := refusal(path):
        raise FileError(f"Invalid path: {why}", kind="invalid")
    return str.__str__(path)


def refusal(path: str) -> str | None:
    """Why nobody can ask for what lies at this path, if so: what is refused to readers is listed with these words."""
    if not printable(path):
        return "its name has control characters or bytes that are not UTF-8"
    if "\\" in path:
        return "its name has a backslash"
    if len(path.encode()) > _MAX_BYTES or any(len(part.encode()) > _MAX_PART_BYTES for part in path.split("/")):
        return f"longer than {_MAX_BYTES} bytes, or {_MAX_PART_BYTES} between two slashes"
    return None


def plain(name: str) -> bool:
    """Fit for a file on this machine: `printable`, and looks like what it is."""
    return printable(name) and not _DISGUISING.search(name)


def shown(name: str) -> str:
    """A name that a program chose, fit for a line of text."""
    if len(name) > _MAX_SHOWN_CHARS:
        name = f"{name[:_MAX_SHOWN_CHARS]}... ({len(name):,} characters)"
    return one_line(name)


def _prefixes(places: Places) -> tuple[tuple[str, str], ...]:
    # The real ones first: they may lie beneath /tmp themselves.
    return (
        (places.workspace, places.workspace),
        (places.tmp, places.tmp),
        ("/workspace", places.workspace),
        ("/mnt/data", places.workspace),
        ("/tmp", places.tmp),
    )
