"""Names of instances, and the ids of what lives on one: each says which instance has it."""

from __future__ import annotations

import re
import secrets
import string
import time

from starlette.types import Scope

from ..errors import BadArgument

MAX_NAME = 63  # as a pod's
_INSTANCE = r"[A-Za-z0-9][A-Za-z0-9.-]{0,69}"  # a worker has its number behind the name
_ID = re.compile(rf"([a-z])_({_INSTANCE})_([A-Za-z0-9_-]{{22}})")
_DIGITS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
_BIRTH_DIGITS, _BIRTHS_A_SECOND = 6, 16  # enough until the year 2106
_RANDOM_BYTES = 12


def _birth() -> str:
    ticks = int(time.time() * _BIRTHS_A_SECOND)
    return "".join(_DIGITS[ticks >> 6 * place & 63] for place in reversed(range(_BIRTH_DIGITS)))


BORN = _birth()  # this process, which tells its ids from those of an earlier one with its name


def made(kind: str, instance: str) -> str:
    """A new id; `kind` is one letter."""
    return f"{kind}_{instance}_{BORN}{secrets.token_urlsafe(_RANDOM_BYTES)}"


def is_of_earlier(text: str) -> bool:
    """Whether it is an id that a process before this one made, as far as the clock can tell."""
    named = _ID.fullmatch(text)
    if named is None:
        return False
    made_by, own = ([*map(_DIGITS.index, birth)] for birth in (named[3][:_BIRTH_DIGITS], BORN))
    return made_by < own


def instance_of(kind: str, text: str) -> str | None:
    """Which instance has it; None where it is no such id."""
    named = _ID.fullmatch(text)
    return named[2] if named is not None and named[1] == kind else None


def is_instance(name: str) -> bool:
    """Whether a server or one of its workers may have this name."""
    return re.fullmatch(_INSTANCE, name) is not None


def checked(name: str) -> str:
    """A name that was given: it becomes a part of ids and of file names."""
    if len(name) > MAX_NAME or not is_instance(name):
        raise BadArgument(
            f"an instance's name has 1 to {MAX_NAME} letters, digits, '-' and '.', a letter or a digit first"
        )
    return name


def beside(scope: Scope) -> bool:
    """Whether a worker of this server passes the request on: those alone reach the socket between workers."""
    return bool(scope["state"]["connection"].is_beside)


def new_request() -> str:
    return secrets.token_hex(16)


def of_request(scope: Scope) -> str:
    """The request's own: a new one, or what the worker before us gave it, and never a client's."""
    given = (value for name, value in scope["headers"] if name == b"x-request-id")
    passed = next(given, None) if beside(scope) else None
    return new_request() if passed is None else passed.decode("latin-1")
