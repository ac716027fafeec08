"""Replacing one passage of a text file."""

from __future__ import annotations

from .errors import BadArgument, FileError

MAX_BYTES = 5_242_880  # of a file that is edited, before and after
_MANY, _LONG = 64, 256


def check(old: object, new: object) -> None:
    """Before anything is read."""
    for name, value in (("old_string", old), ("new_string", new)):
        if not isinstance(value, str):
            raise BadArgument(f"{name} must be a str, not {type(value).__name__}")
        if any("\ud800" <= ch <= "\udfff" for ch in value):
            raise BadArgument(f"{name} cannot be written as UTF-8: it holds a lone surrogate; remove it")


def edited(data: bytes, old: str, new: str, path: str) -> bytes:
    """The content of the file at `path` with the one occurrence of `old` replaced; every other byte stays as it is."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise FileError("Not a text file: must be UTF-8", kind="not_text") from None
    if "\0" in text:
        raise FileError("Not a text file: it holds NUL bytes", kind="not_text")
    result = replace_once(text, old, new, path).encode()
    if len(result) > MAX_BYTES:
        raise FileError(f"File too large: {len(result)} bytes, at most {MAX_BYTES}", kind="too_large")
    return result


def replace_once(text: str, old: str, new: str, path: str) -> str:
    """`text` with `old` replaced, which must be there exactly once, overlapping matches counted."""
    if not old:
        raise FileError("old_string is empty: must be a passage of the file", kind="no_match")
    count = occurrences(text, old)
    if count == 0:
        raise FileError(
            f"old_string not found in {path}: read the file, and copy the passage as it stands there", kind="no_match"
        )
    if count > 1:
        raise FileError(f"old_string found {count} times - not unique. Include more context.", kind="not_unique")
    return text.replace(old, new, 1)


def occurrences(text: str, old: str) -> int:
    """How often, overlapping ones counted."""
    count, at = 0, text.find(old)
    while at >= 0:
        count += 1
        if count > _MANY and len(old) > _LONG:
            return _counted(text, old)
        at = text.find(old, at + 1)
    return count


def _counted(text: str, old: str) -> int:
    """Knuth, Morris and Pratt: a long string that repeats itself would keep a plain search busy for hours."""
    back = [0] * len(old)
    matched = 0
    for at in range(1, len(old)):
        while matched and old[at] != old[matched]:
            matched = back[matched - 1]
        matched += old[at] == old[matched]
        back[at] = matched
    count = matched = 0
    for character in text:
        while matched and (matched == len(old) or character != old[matched]):
            matched = back[matched - 1]
        matched += character == old[matched]
        count += matched == len(old)
    return count
