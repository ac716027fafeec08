"""The engine's HTTP interface, and its errors as ours, by table."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import time
from collections.abc import AsyncIterable, Callable, Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import httpx2

from ...errors import BackendUnavailable, ConfigurationError, EngineFailed, FumehoodError
from ...threads import needed_as
from . import tls
from .address import Address

OURS, OLDEST = (1, 47), (1, 41)
_CONNECT_S, ANSWER_S, _PING_S, _LAST_S = 5.0, 30.0, 10.0, 10.0
_COMING_S, _AGAIN_S = 3.0, 0.05
ALIVE_S = 3.0  # for an answer that costs it nothing, where we are about to leave
_NOT_FOUND = 404
_LIMIT = 1 << 20  # bytes of an attached stream that wait to be read
_MAX_HEAD = 65536

_ADVICE = "Set SANDBOX_TYPE=local or start Docker daemon"
_REFUSALS: tuple[tuple[str, type[FumehoodError], str], ...] = (  # what it says, our error, the message
    (
        r"invalid reference format",
        ConfigurationError,
        "DOCKER_IMAGE is no name of an image ({said}): set it to one such as antigravity-sandbox:latest",
    ),
    (
        r"no such image",
        BackendUnavailable,
        "{said}: build it with `fumehood image build`, or set DOCKER_IMAGE",
    ),
    (
        r"client version .* is too (old|new)",
        BackendUnavailable,
        "this Docker engine speaks another version of its API ({said}): update Docker, or fumehood",
    ),
    (
        r"http request to an https server",
        BackendUnavailable,
        "the engine wants TLS ({said}): set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to where its pem files are",
    ),
    (
        r"no space left on device|disk quota exceeded",
        EngineFailed,
        "the Docker engine's disk is full ({said}): free some, for example with `docker system prune`",
    ),
    (
        r"unknown (or invalid )?runtime",
        ConfigurationError,
        "the Docker engine has no runtime of the name in DOCKER_RUNTIME ({said}): install it there, or set another",
    ),
    (
        r"minimum memory limit",
        ConfigurationError,
        "a container cannot have so little memory ({said}): raise DOCKER_MEMORY_LIMIT and SANDBOX_MEMORY_MB",
    ),
    (
        r"bind source path does not exist",
        EngineFailed,
        "the Docker engine does not see this machine's files ({said}): put the packages in the image",
    ),
)
_UNREACHABLE: dict[int, str] = {
    errno.EACCES: "no permission to use the Docker daemon at {where}: join the group that owns its socket"
    " (sudo usermod -aG docker $USER, then log in again), or set SANDBOX_TYPE=local",
    errno.EPERM: "this process may not reach the Docker daemon at {where} (a policy of this system forbids it): allow"
    " it, or set SANDBOX_TYPE=local",
}


class Refused(Exception):
    """The engine's answer, where the caller may know better what it means."""

    def __init__(self, status: int, said: str):
        super().__init__(said)
        self.status = status
        self.said = said


class Facts(NamedTuple):
    """Of an engine."""

    version: tuple[int, int]
    cpus: int
    is_podman: bool


class Client:
    """Of one event loop."""

    def __init__(self, address: Address, facts: Facts | None = None):
        self.address = address
        self.facts = facts
        self.is_silent = False  # it let the last one who asked it for something wait in vain
        self._tls = None if address.tls is None else tls.context(address.tls)
        self._http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(uds=address.socket, verify=self._tls or False),
            base_url=address.url,
            trust_env=False,
        )

    async def meet(self) -> Facts:
        """Agree on a version."""
        if self.facts is None:
            try:
                self.facts = await self._met()
            except Refused as refused:
                raise translated(refused, "say what it can do") from None
        return self.facts

    async def ask(self, verb: str, path: str, body: object = None, **params: str) -> Any:
        """What the engine answers; Refused if it is not what was wanted."""
        assert self.facts is not None
        return await self._ask(self.facts.version, verb, path, body, params)

    async def attach(self, identity: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The container's streams: raw towards it, in Docker's frames from it."""
        path = self._versioned(f"/containers/{quote(identity)}/attach?stream=1&stdin=1&stdout=1&stderr=1")
        try:
            async with asyncio.timeout(ANSWER_S):
                with needed_as(BackendUnavailable):
                    reader, writer = await self._open()
                try:
                    writer.write(
                        f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
                        "Content-Length: 0\r\n\r\n".encode()
                    )
                    head = await reader.readuntil(b"\r\n\r\n")
                    status = int(head.split(None, 2)[1])
                    if status not in (101, 200):
                        raise Refused(status, await _rest(reader, head))
                except BaseException:
                    writer.transport.abort()
                    raise
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
            raise self.unreachable(error) from error
        return reader, writer

    async def build(
        self, context: AsyncIterable[bytes], params: Mapping[str, str], tell: Callable[[dict[str, Any]], None]
    ) -> None:
        """An image from a tar; `tell` hears each message. As long as a step takes, the engine may say nothing."""
        timeout, content_type = httpx2.Timeout(None, connect=_CONNECT_S), {"Content-Type": "application/x-tar"}
        rest = b""
        try:
            async with self._http.stream(
                "POST", self._versioned("/build"), params=params, content=context, headers=content_type, timeout=timeout
            ) as response:
                if not response.is_success:
                    raise Refused(response.status_code, _message(await response.aread()))
                async for part in response.aiter_bytes():
                    *lines, rest = (rest + part).split(b"\n")
                    for line in filter(None, map(bytes.strip, lines)):
                        tell(json.loads(line))
        except (httpx2.TransportError, OSError) as error:  # it lets some of TLS through
            raise self.unreachable(error) from error

    async def answers(self) -> bool:
        """Whether it does at all, at once: one that hangs takes connections, too."""
        if not self.is_silent:
            try:
                await self._send("GET", "/_ping", timeout_s=ALIVE_S)
            except BackendUnavailable:
                self.is_silent = True
        return not self.is_silent

    async def close(self) -> None:
        await self._http.aclose()

    def unreachable(self, error: BaseException) -> BackendUnavailable:
        where, cause, said = self.address.shown, _cause(error), None
        if self.address.tls is not None:
            is_first = self.facts is None and isinstance(error, (httpx2.ReadError, httpx2.RemoteProtocolError))
            said = tls.explained(cause, where, was_dropped=is_first)
        elif isinstance(cause, OSError):
            said = _UNREACHABLE.get(cause.errno or 0, "").format(where=where)
        if said:
            return BackendUnavailable(said)
        why = f"{error}" or type(error).__name__
        if isinstance(error, (httpx2.TimeoutException, TimeoutError)):
            why = "no answer in time"
        return BackendUnavailable(f"Docker daemon not available at {where} ({why}). {_ADVICE}")

    # --- inside

    async def _met(self) -> Facts:
        response = await self._send("GET", "/_ping", timeout_s=_PING_S)
        if not response.is_success:
            raise Refused(response.status_code, _message(response.content))
        version = _version(response.headers.get("Api-Version", ""))
        if version == (0, 0):
            raise BackendUnavailable(f"what answers at {self.address.shown} is no Docker engine. {_ADVICE}")
        if version < OLDEST:
            raise BackendUnavailable(
                f"the Docker engine at {self.address.shown} is too old: its API is {_dotted(version)},"
                f" and {_dotted(OLDEST)} (Docker 20.10, Podman 4) is the oldest that will do; update it"
            )
        version = min(OURS, version)
        info = await self._ask(version, "GET", "/info")
        return Facts(version, int(info.get("NCPU") or 0), "Libpod-Api-Version" in response.headers)

    async def _ask(
        self, version: tuple[int, int], verb: str, path: str, body: object = None, params: Any = None
    ) -> Any:
        response = await self._send(verb, f"/v{_dotted(version)}{path}", body, params)
        self.is_silent = False
        if response.is_success:
            return response.json() if response.content else None
        raise Refused(response.status_code, _message(response.content))

    async def _send(
        self, verb: str, path: str, body: object = None, params: Any = None, timeout_s: float | None = None
    ) -> Any:
        timeout = httpx2.Timeout(ANSWER_S if timeout_s is None else timeout_s, connect=_CONNECT_S)
        try:
            with needed_as(BackendUnavailable):
                return await self._http.request(verb, path, json=body, params=params or None, timeout=timeout)
        except (httpx2.TransportError, OSError) as error:  # it lets some of TLS through
            raise self.unreachable(error) from error

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.address.socket is not None:
            return await asyncio.open_unix_connection(self.address.socket, limit=_LIMIT)
        parts = urlsplit(self.address.url)
        return await asyncio.open_connection(parts.hostname, parts.port, limit=_LIMIT, ssl=self._tls)

    def _versioned(self, path: str) -> str:
        assert self.facts is not None
        return f"/v{_dotted(self.facts.version)}{path}"


def remove_now(
    address: Address,
    version: tuple[int, int],
    names: Collection[str],
    coming: Collection[str] = (),
    *,
    was_silent: bool = False,
) -> None:
    """Without an event loop: for garbage and the end of the process. `coming` may not be there yet."""
    verify = False if address.tls is None else tls.context(address.tls)
    transport = httpx2.HTTPTransport(uds=address.socket, verify=verify)
    until = time.monotonic() + _COMING_S
    wait_s = ALIVE_S if was_silent else _LAST_S
    with httpx2.Client(transport=transport, base_url=address.url, timeout=wait_s, trust_env=False) as http:
        for index, name in enumerate(names):
            try:
                if not index:
                    http.get("/_ping", timeout=ALIVE_S)
                while True:
                    answer = http.delete(f"/v{_dotted(version)}/containers/{quote(name)}?force=1&v=1")
                    if answer.status_code != _NOT_FOUND or name not in coming or time.monotonic() > until:
                        break
                    time.sleep(_AGAIN_S)
            except (httpx2.TransportError, OSError):
                return  # whoever starts next finds them by their labels


def translated(refused: Refused, doing: str) -> FumehoodError:
    for pattern, kind, message in _REFUSALS:
        if re.search(pattern, refused.said, re.IGNORECASE):
            return kind(message.format(said=refused.said[:500]))
    return EngineFailed(f"the Docker engine refused to {doing}: {refused.said[:500]} (HTTP {refused.status})")


def _message(content: bytes) -> str:
    text = content.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return str(found.get("message", text)) if isinstance(found, dict) else text


async def _rest(reader: asyncio.StreamReader, head: bytes) -> str:
    """Of a refusal, which may leave the connection open."""
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    if length is None:
        return _message(await reader.read(_MAX_HEAD))
    return _message(await reader.readexactly(min(int(length[1]), _MAX_HEAD)))


def _cause(error: BaseException) -> BaseException:
    """httpx says it in words; the system's own error is behind it."""
    while not (isinstance(error, OSError) and error.errno is not None):
        inner = error.args[0] if error.args and isinstance(error.args[0], BaseException) else None
        behind = inner or error.__cause__ or error.__context__
        if behind is None:
            return error
        error = behind
    return error


def _version(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
