"""Text that a program, a package or an engine chose, fit for one line of a message, a log or a terminal."""

from __future__ import annotations


def one_line(text: str) -> str:
    """The same with what cannot be printed as its escape, like `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else ascii(ch)[1:-1] for ch in text)


def printable(name: str) -> bool:
    """No control characters (NUL, newlines), nothing that cannot be written as UTF-8."""
    return name.isprintable() or not any(  # the first is fast, and true of most
        ch < " " or "\x7f" <= ch <= "\x9f" or ch in "\u2028\u2029" or "\ud800" <= ch <= "\udfff" for ch in name
    )
