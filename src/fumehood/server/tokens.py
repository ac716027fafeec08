"""Who may come in: bearer tokens with their quotas, and single-use tickets for WebSockets."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..errors import ConfigurationError
from . import log

TICKET_S = 30.0
MAX_TICKETS = 1000  # of each token: nobody uses up another's
_REREAD_S = 1.0
_MIN_CHARACTERS = 16
_QUOTAS = ("max_concurrent", "max_sessions", "per_minute")


class Token(NamedTuple):
    """One client: its name, which is no secret, and what it may do at a time. None is without a bound of its own."""

    name: str
    digest: bytes
    max_concurrent: int | None = None
    max_sessions: int | None = None
    per_minute: int | None = None


def made() -> str:
    """A new token."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Tokens:
    """The tokens in force; a token file is read again when it has changed."""

    def __init__(self, token: str | None = None, file: str | None = None) -> None:
        self._own = (_from_text("default", token),) if token is not None else ()
        self._file, self._seen, self._looked = file, _stat(file), time.monotonic()
        self._known = self._own + (_read(file) if file is not None else ())
        self.failure: str | None = None  # why the changed file is not in force

    def find(self, presented: str) -> Token | None:
        """The token that was presented, if it is one of ours; takes as long for a wrong one."""
        self._reread()
        wanted, found = digest(presented), None
        for token in self._known:
            if hmac.compare_digest(token.digest, wanted):
                found = token
        return found

    def current(self, token: Token) -> bool:
        """Whether it is still in force."""
        self._reread()
        return any((known.name, known.digest) == (token.name, token.digest) for known in self._known)

    async def removed(self, token: Token) -> None:
        """Returns when it is no longer in force."""
        while self.current(token):
            await asyncio.sleep(_REREAD_S)

    def _reread(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._looked < _REREAD_S:
            return
        self._looked, seen = now, _stat(self._file)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._known, self.failure = self._own + _read(self._file), None
        except ConfigurationError as error:  # a half-written file locks nobody out
            self.failure = str(error)
            log.write("tokens_kept", level="warning", message=self.failure)
        else:
            log.write("tokens_read", level="info", tokens=[token.name for token in self._known])


class Tickets:
    """Each opens one path, once, for the token that asked for it, and soon."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._made: dict[bytes, tuple[float, Token, str]] = {}

    def make(self, token: Token, path: str) -> str:
        now = time.monotonic()
        self._made = {key: entry for key, entry in self._made.items() if entry[0] > now}
        own = [key for key, (_, owner, _) in self._made.items() if owner.name == token.name]
        if len(own) >= MAX_TICKETS:
            self._made.pop(own[0])
        ticket = f"{self._instance}.{secrets.token_urlsafe(32)}"  # says whose it is, where there are several
        self._made[digest(ticket)] = now + TICKET_S, token, path
        return ticket

    def redeem(self, ticket: str, path: str) -> Token | None:
        """Whose ticket it was; it is used up even where it does not fit."""
        until, token, bound = self._made.pop(digest(ticket), (0.0, None, ""))
        return token if until > time.monotonic() and bound == path else None


def _stat(path: str | None) -> tuple[int, ...] | None:
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found else None


def _read(path: str) -> tuple[Token, ...]:
    """A token alone, or YAML or JSON: a list of entries, or one entry on each line."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the token file {path} cannot be read: {error}") from None
    entries = _entries(text, path)
    if not entries:
        raise ConfigurationError(f"the token file {path} has no token in it")
    found = tuple(_entry(entry, number, path) for number, entry in enumerate(entries, 1))
    if len({token.name for token in found}) < len(found) or len({token.digest for token in found}) < len(found):
        raise ConfigurationError(f"the token file {path} has a name or a token twice")
    return found


def _entries(text: str, path: str) -> list[Any]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) == 1 and len(lines[0].split()) == 1 and not lines[0].lstrip().startswith(("{", "[")):
        return [{"name": "default", "token": lines[0].strip()}]  # which may begin like an entry of YAML
    try:
        if lines and all(line.lstrip().startswith("{") for line in lines):
            return [yaml.safe_load(line) for line in lines]
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError):  # by a tag, too
        raise ConfigurationError(f"the token file {path} is neither YAML nor JSON lines") from None
    return loaded if isinstance(loaded, list) else [loaded] if loaded is not None else []


def _entry(entry: object, number: int, path: str) -> Token:
    where = f"entry {number} of the token file {path}"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise ConfigurationError(f"{where} needs a name, and a token or a sha256")
    if unknown := set(entry) - {"name", "token", "sha256", *_QUOTAS}:
        raise ConfigurationError(f"{where} has unknown keys: {', '.join(sorted(map(_shown, unknown)))}")
    quotas = {name: entry[name] for name in _QUOTAS if entry.get(name) is not None}
    if any(not isinstance(value, int) or isinstance(value, bool) or value < 0 for value in quotas.values()):
        raise ConfigurationError(f"{where}: {', '.join(_QUOTAS)} are whole numbers")
    if ("token" in entry) == ("sha256" in entry):
        raise ConfigurationError(f"{where} needs one of token and sha256")
    if "token" in entry:
        return _from_text(entry["name"], entry["token"])._replace(**quotas)
    try:
        hashed = bytes.fromhex(entry["sha256"])
    except (TypeError, ValueError):
        hashed = b""
    if len(hashed) != hashlib.sha256().digest_size:
        raise ConfigurationError(f"{where}: sha256 is 64 hexadecimal digits")
    return Token(entry["name"], hashed, **quotas)


def _shown(key: object) -> str:
    """A key that is too long to be one of ours may be a token in the wrong place."""
    return key if isinstance(key, str) and len(key) < _MIN_CHARACTERS else "…"


def _from_text(name: str, token: object) -> Token:
    if not isinstance(token, str) or len(token) < _MIN_CHARACTERS or not token.isascii() or not token.isprintable():
        raise ConfigurationError(
            f"the token {name!r} must be {_MIN_CHARACTERS} or more printable ASCII characters; make one with:"
            " python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return Token(name, digest(token))
