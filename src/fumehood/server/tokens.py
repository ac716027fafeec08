"""Who may come in: bearer tokens with their quotas, and single-use tickets for WebSockets."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import yaml

from ..errors import ConfigurationError
from . import log, reading

TICKET_S = 30.0
MAX_TICKETS = 1000  # of each token: nobody uses up another's
_REREAD_S = 1.0
_MIN_CHARACTERS = 16
_MAX_NAME = 128
_MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_QUOTA = 1_000_000
_QUOTAS = ("max_concurrent", "max_sessions", "per_minute")
_ROLES = ("admin", "metrics")
_DEFAULT = "default"  # whose the variable's token is, and one that stands alone in a file


class Token(NamedTuple):
    """One secret of an owner, whose name is none. Tokens of one name share all but the secret.

    A quota that is None is the server's default.
    """

    name: str
    digest: bytes
    max_concurrent: int | None = None
    max_sessions: int | None = None
    per_minute: int | None = None
    role: str = ""

    @property
    def oversees(self) -> bool:
        """Whether it sees the sessions of all owners, and may end them."""
        return self.role == "admin"

    @property
    def sees_all_numbers(self) -> bool:
        return self.role in _ROLES

    def may_ask(self, path: str) -> bool:
        return self.role != "metrics" or path == "/metrics"


def made() -> str:
    """A new token."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Tokens:
    """The tokens in force; a token file is read again when it has changed.

    `text` is what the file had when it was last in force, for a server that starts while it is not.
    """

    def __init__(self, token: str | None = None, file: str | None = None, text: str | None = None) -> None:
        self._own = (_from_text(_DEFAULT, token),) if token is not None else ()
        self._file, self._seen, self._looked = file, _stat(file), time.monotonic()
        self._watched: dict[Callable[[], None], Token] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.failure: str | None = None  # why the changed file is not in force
        self.text = text  # of the file in force
        try:
            self._take()
        except ConfigurationError as error:
            if text is None:
                raise
            self._known = _in_force(self._own, file, text)
            self._keep(error)
        self._keys = set(map(_key, self._known))

    @property
    def owners(self) -> Iterable[str]:
        """Their names."""
        return dict.fromkeys(token.name for token in self._known)

    @property
    def runners(self) -> int:
        """How many owners may run programs."""
        return len({token.name for token in self._known if token.role != "metrics"})

    def find(self, presented: str) -> Token | None:
        """The token that was presented, if it is one of ours; takes as long for a wrong one."""
        self._reread()
        wanted, found = digest(presented), None
        for token in self._known:
            if hmac.compare_digest(token.digest, wanted):
                found = token
        return found

    def current(self, token: Token) -> bool:
        """Whether it is still in force, with the role that it had."""
        self._reread()
        return _key(token) in self._keys

    async def removed(self, token: Token) -> None:
        """Returns when it is no longer in force."""
        while self.current(token):
            await asyncio.sleep(_REREAD_S)

    def watch(self, token: Token, tell: Callable[[], None]) -> None:
        """`tell` is called when a file without this token comes into force, until `unwatch`."""
        self._watched[tell] = token
        if self._file is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_REREAD_S, self._look_again)

    def unwatch(self, tell: Callable[[], None]) -> None:
        self._watched.pop(tell, None)

    def reload(self) -> None:
        """Read the file now, changed or not."""
        self._looked, self._seen = -_REREAD_S, ()
        self._reread()

    async def follow(self) -> None:
        """Read the file whenever it has changed, without being asked for a token."""
        while True:
            self._reread()
            await asyncio.sleep(_REREAD_S)

    def _look_again(self) -> None:
        self._timer = None
        self._reread()
        if self._watched:
            self._timer = asyncio.get_running_loop().call_later(_REREAD_S, self._look_again)

    def _reread(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._looked < _REREAD_S:
            return
        self._looked, seen = now, _stat(self._file)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._take()
        except ConfigurationError as error:  # a half-written file locks nobody out
            self._keep(error)
            return
        self._keys = set(map(_key, self._known))
        log.write("tokens_read", tokens=list(self.owners))
        for tell, token in list(self._watched.items()):
            if _key(token) not in self._keys:
                tell()

    def _take(self) -> None:
        text = _content(self._file) if self._file is not None else None
        self._known = _in_force(self._own, self._file, text)
        self.text, self.failure = text, None

    def _keep(self, error: ConfigurationError) -> None:
        self.failure = str(error)
        log.write("tokens_kept", level="warning", message=self.failure)


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


def _key(token: Token) -> tuple[str, bytes, str]:
    return token.name, token.digest, token.role


def _in_force(own: tuple[Token, ...], file: str | None, text: str | None) -> tuple[Token, ...]:
    """The variable's token and those of the file; they may be of one owner where the file has a token alone."""
    if file is None or text is None:
        return own
    found, is_alone = _read(text, file)
    if own and not is_alone and any(token.name == _DEFAULT for token in found):
        raise ConfigurationError(
            f"the token file {file} has an entry {_DEFAULT!r}, which is the name of the token in FUMEHOOD_TOKEN: give"
            " the entry another name, or unset the variable"
        )
    if len({token.digest for token in (*own, *found)}) < len(own) + len(found):
        where = (
            "is in FUMEHOOD_TOKEN too" if own and own[0].digest in {each.digest for each in found} else "is there twice"
        )
        raise ConfigurationError(f"the token file {file} has a token that {where}: each may be given once")
    return (*own, *found)


def _content(path: str) -> str:
    try:
        data = reading.content(path, _MAX_FILE_BYTES)
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigurationError(f"the token file {path} is larger than {_MAX_FILE_BYTES // 2**20} MiB")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"the token file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the token file {path} is not UTF-8 text") from None


def _read(text: str, path: str) -> tuple[tuple[Token, ...], bool]:
    """A token alone (then True), or YAML or JSON: a list of entries, or one entry on each line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) == 1 and len(lines[0].split()) == 1 and not lines[0].lstrip().startswith(("{", "[")):
        return (_from_text(_DEFAULT, lines[0].strip()),), True  # which may begin like an entry of YAML
    entries = _entries(text, lines, path)
    if not entries:
        raise ConfigurationError(f"the token file {path} has no token in it")
    found = tuple(_entry(entry, number, path) for number, entry in enumerate(entries, 1))
    quotas = {name: _shared(name, [token for token in found if token.name == name], path) for name in _names(found)}
    return tuple(token._replace(**quotas[token.name]) for token in found), False


def _names(tokens: Iterable[Token]) -> Iterable[str]:
    return dict.fromkeys(token.name for token in tokens)


def _shared(name: str, tokens: list[Token], path: str) -> dict[str, Any]:
    """The quotas of an owner: what one of its entries says holds for all of them."""
    if len({token.role for token in tokens}) > 1:
        raise ConfigurationError(f"the token file {path} gives {name!r} two roles: write the same into each entry")
    quotas = {}
    for quota in _QUOTAS:
        values = {getattr(token, quota) for token in tokens} - {None}
        if len(values) > 1:
            raise ConfigurationError(
                f"the token file {path} gives {name!r} {quota} twice, with different values: entries of one name share"
                " their quotas"
            )
        quotas[quota] = values.pop() if values else None
    return quotas


class _Once(yaml.SafeLoader):
    """Of two values for one key YAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise _Twice(_shown(twice[0]))
        return super().construct_mapping(node, deep)


class _Twice(Exception):
    pass


def _entries(text: str, lines: list[str], path: str) -> list[Any]:
    try:
        if lines and all(line.lstrip().startswith("{") for line in lines):
            return [yaml.load(line, _Once) for line in lines]
        loaded = yaml.load(text, _Once)
    except _Twice as key:
        raise ConfigurationError(f"the token file {path} has {key} twice in one entry: leave one of them") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError):  # by a tag, too
        raise ConfigurationError(f"the token file {path} is neither YAML nor JSON lines") from None
    return loaded if isinstance(loaded, list) else [loaded] if loaded is not None else []


def _entry(entry: object, number: int, path: str) -> Token:
    where = f"entry {number} of the token file {path}"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise ConfigurationError(f"{where} needs a name, and a token or a sha256")
    if len(entry["name"]) > _MAX_NAME or not entry["name"].isprintable():
        raise ConfigurationError(f"{where}: a name has at most {_MAX_NAME} characters, all of them printable")
    if entry["name"] != unicodedata.normalize("NFC", entry["name"]).strip():
        raise ConfigurationError(f"{where}: a name has no blanks at its ends, and its characters are composed (NFC)")
    if unknown := set(entry) - {"name", "token", "sha256", "role", *_QUOTAS}:
        raise ConfigurationError(f"{where} has unknown keys: {', '.join(sorted(map(_shown, unknown)))}")
    quotas = {name: entry[name] for name in _QUOTAS if entry.get(name) is not None}
    if any(type(value) is not int or not 0 <= value <= _MAX_QUOTA for value in quotas.values()):
        raise ConfigurationError(f"{where}: {', '.join(_QUOTAS)} are whole numbers from 0 to {_MAX_QUOTA}")
    role = entry.get("role")
    if role is not None and role not in _ROLES:
        raise ConfigurationError(f"{where}: role is {' or '.join(_ROLES)}, or left out")
    if ("token" in entry) == ("sha256" in entry):
        raise ConfigurationError(f"{where} needs one of token and sha256")
    if "token" in entry:
        return _from_text(entry["name"], entry["token"])._replace(role=role or "", **quotas)
    try:
        hashed = bytes.fromhex(entry["sha256"])
    except (TypeError, ValueError):
        hashed = b""
    if len(hashed) != hashlib.sha256().digest_size:
        raise ConfigurationError(f"{where}: sha256 is 64 hexadecimal digits")
    return Token(entry["name"], hashed, role=role or "", **quotas)


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
