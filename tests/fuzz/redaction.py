"""Text of a program on its way to a record."""

from __future__ import annotations

from fumehood.redact import MARK, MIN_SECRET, Known, redact_text

from .target import Target, fields, text


def check(data: bytes) -> None:
    """Three secrets, then the text."""
    *given, said = (text(each) for each in fields(data, 4))
    redact_text(said)
    secrets = [each for each in given if len(each) >= MIN_SECRET and each not in MARK]
    known = Known()
    known.give(secrets)
    once = redact_text(said, secrets, known)
    for secret in secrets:
        assert not any(secret in part for part in once.split(MARK))
    redact_text(once, secrets, known)


TARGET = Target("redaction", check)
