"""Names of instances, and the ids of what lives on one: each says which instance has it."""

from __future__ import annotations

import re
import secrets

from starlette.types import Scope

from ..errors import BadArgument

MAX_NAME = 63  # as a pod's
_INSTANCE = r"[A-Za-z0-9][A-Za-z0-9.-]{0,69}"  # a worker has its number behind the name
_ID = re.compile(rf"([a-z])_({_INSTANCE})_[A-Za-z0-9_-]{{22}}")


def made(kind: str, instance: str) -> str:
    """A new id; `kind` is one letter."""
    return f"{kind}_{instance}_{secrets.token_urlsafe(16)}"


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
    """Whether a worker of this server passes the request on: those alone reach the sockets that are files."""
    return bool(scope.get("server")) and scope["server"][1] is None


def of_request(scope: Scope) -> str:
    """The request's own: a new one, or what the worker before us gave it, and never a client's."""
    given = (value for name, value in scope["headers"] if name == b"x-request-id")
    passed = next(given, None) if beside(scope) else None
    return secrets.token_hex(16) if passed is None else passed.decode("latin-1")
