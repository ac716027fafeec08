"""The server's HTTP interface. What is sent again is only what has certainly not been begun."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import httpx2

from ...errors import BackendUnavailable, BadArgument, FileError, FumehoodError, SandboxLost
from ...thread_pool import aside
from ...threads import needed_as
from . import refusals
from .address import Address
from .refusals import Refusal

PROTOCOL = "1"
JSON, BINARY, EVENTS = "application/json", "application/octet-stream", "application/x-ndjson"
WAIT_S = 30.0  # for a server that is too busy, in all
ANSWER_S = 90.0
_CONNECT_S, _WRITE_S, _LAST_S = 10.0, 60.0, 5.0
_KEEP_S = 4.0  # less than any server keeps a connection that nobody uses
_REFUSED_PAUSES_S = (0.1, 0.4)
_BUSY_S = 0.05
_MAX_REFUSAL = 65536
MAX_ANSWER = 64 * 1024 * 1024  # more than a list of as many files as there can be
_SLOWEST = 16 * 1024  # bytes a second, once ANSWER_S have passed
_TIMEOUTS = (httpx2.TimeoutException, TimeoutError)
_PART = 1024 * 1024
_SAFE = ("GET", "PUT")  # twice is as good as once


class Upload(NamedTuple):
    """A file of this machine, which is sent as it is read."""

    path: str
    size: int
    tell: Callable[[int], None]

    async def parts(self) -> AsyncGenerator[bytes, None]:
        done = 0
        try:
            with open(self.path, "rb") as file:
                while done < self.size:
                    part = await aside(file.read, min(self.size - done, _PART))
                    if not part:
                        raise FileError(f"{self.path} became shorter while it was sent; try again", "invalid")
                    done += len(part)
                    yield part
                    self.tell(done)
        except OSError as error:  # ours, not one of the way to the server
            raise FileError(f"{self.path} cannot be read: {error.strerror}", "denied") from None


class Client:
    """Of one event loop."""

    def __init__(self, address: Address):
        self.address = address
        self.where = address.url
        self.is_sure = False  # that the server is there, and ours
        self.most_bytes: dict[str, int] = {}  # of a body, by kind: a server that gets more hangs up
        self._http = httpx2.AsyncClient(
            verify=ssl.create_default_context() if address.url.startswith("https:") else False,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=_KEEP_S),
            trust_env=False,
        )

    async def ask(
        self,
        verb: str,
        path: str,
        body: object = None,
        *,
        read_s: float = ANSWER_S,
        most: int = MAX_ANSWER,
        **params: str,
    ) -> Any:
        """What the server answers, as data."""
        content = None if body is None else json.dumps(body).encode()
        response = await self.send(verb, path, content, read_s=read_s, params=params)
        data = await self.content(response, most)
        if len(data) > most:
            raise refusals.too_much(self.where, most)
        try:
            return json.loads(data) if data else None
        except (ValueError, RecursionError):
            raise refusals.no_server(self.where, response.status_code) from None

    async def send(
        self,
        verb: str,
        path: str,
        content: bytes | Upload | None = None,
        *,
        kind: str = JSON,
        accept: str = JSON,
        read_s: float = ANSWER_S,
        params: Mapping[str, str] | None = None,
        runs: bool = False,
    ) -> httpx2.Response:
        """An answer that is a success, its body not yet read. `runs`: once sent, a program may have run."""
        size = content.size if isinstance(content, Upload) else len(content or b"")
        self._check_size(kind, size)
        until = time.monotonic() + WAIT_S
        failures = 0
        while True:
            body = content.parts() if isinstance(content, Upload) else content
            request = self._http.build_request(
                verb,
                f"{self.where}{path}",
                content=body,
                params=params or None,
                headers=self._headers(accept, None if content is None else kind, size),
                timeout=httpx2.Timeout(read_s, connect=_CONNECT_S, write=_WRITE_S, pool=None),
            )
            try:
                with needed_as(BackendUnavailable):
                    async with asyncio.timeout(_CONNECT_S + read_s + size / _SLOWEST):  # it may answer by drops
                        response = await self._http.send(request, stream=True)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                self.is_sure = False
                found = refusals.unreachable(self.where, error)
                if not refusals.was_refused(error) or failures >= len(_REFUSED_PAUSES_S):
                    raise found from error
                await asyncio.sleep(_REFUSED_PAUSES_S[failures])
                failures += 1
                continue
            except (httpx2.TransportError, OSError) as error:
                if verb in _SAFE and not failures and not isinstance(error, _TIMEOUTS):
                    failures += 1
                    continue
                self._broken(error, runs)
            finally:
                if isinstance(body, AsyncGenerator):
                    await body.aclose()
            await self._check_ours(response, runs)
            if response.is_success:
                return response
            refused = await self._refused(response)
            pause_s = _pause_s(refused)
            if pause_s is None or time.monotonic() + pause_s > until:
                raise refused.error()
            await asyncio.sleep(pause_s)

    async def content(self, response: httpx2.Response, most: int) -> bytes:
        """The whole body, read to its end or given up: soon after `most` bytes, or where it comes by drops."""
        found, since = bytearray(), time.monotonic()
        try:
            async for part in response.aiter_raw():
                found += part
                if len(found) > most:
                    break
                if time.monotonic() - since > ANSWER_S + len(found) / _SLOWEST:
                    raise TimeoutError("it answers too slowly")
        except (httpx2.TransportError, OSError) as error:
            self.is_sure = False
            raise refusals.lost(self.where, error, "while it answered") from error
        finally:
            await response.aclose()
        return bytes(found)

    async def close(self) -> None:
        await self._http.aclose()

    # --- inside

    def _check_size(self, kind: str, size: int) -> None:
        if size > (most := self.most_bytes.get(kind, sys.maxsize)):
            too_large = f"{size:,} bytes are more than the server takes at once, {most:,}"
            raise FileError(too_large, "too_large") if kind == BINARY else BadArgument(too_large)

    async def _check_ours(self, response: httpx2.Response, runs: bool) -> None:
        if "x-fumehood-version" in response.headers:
            return
        await response.aclose()
        self.is_sure = False
        found = refusals.no_server(self.where, response.status_code)
        if runs and response.status_code >= 500:  # of a proxy, which may have passed it on
            raise SandboxLost(f"{found}; the program may have run")
        raise found

    def _headers(self, accept: str, kind: str | None, size: int) -> dict[str, str]:
        headers = {**_authorised(self.address), "Accept": accept}
        return headers if kind is None else {**headers, "Content-Type": kind, "Content-Length": str(size)}

    async def _refused(self, response: httpx2.Response) -> Refusal:
        content = await self.content(response, _MAX_REFUSAL)
        return refusals.refusal(self.where, response.status_code, response.headers, content)

    def _broken(self, error: Exception, runs: bool) -> NoReturn:
        self.is_sure = False
        if runs:
            raise refusals.lost(self.where, error, "before it answered, and the program may have run") from error
        if isinstance(error, _TIMEOUTS):
            raise BackendUnavailable(f"the server at {self.where} did not answer in time: see its log") from error
        raise BackendUnavailable(
            f"{refusals.gone(self.where, error, 'before it answered')}: check that it runs, and that"
            " SANDBOX_REMOTE_URL has the right scheme"
        ) from error


def _pause_s(refused: Refusal) -> float | None:
    """How long to wait before the same may be sent again; None where it may have run, or never will."""
    if refused.code in ("too_many", "unavailable"):
        return None if refused.after_s is None else max(_BUSY_S, refused.after_s)
    return _BUSY_S if refused.code == "session_busy" else None  # what we left a moment ago may still be ending


def _authorised(address: Address) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {address.token()}",
        "X-Fumehood-Protocol": PROTOCOL,
        "Accept-Encoding": "identity",
        "User-Agent": "fumehood",
    }


def end_now(address: Address, session_id: str) -> None:
    """Without an event loop: for garbage and the end of the process."""
    parts = urlsplit(f"{address.url}/sessions/{session_id}")
    host, port = parts.hostname or "", parts.port
    try:
        connection = (
            HTTPSConnection(host, port or 443, timeout=_LAST_S, context=ssl.create_default_context())
            if parts.scheme == "https"
            else HTTPConnection(host, port or 80, timeout=_LAST_S)
        )
        try:
            connection.request("DELETE", parts.path, headers=_authorised(address))
            connection.sock.recv(1)  # it has heard us; the rest of its answer could take for ever
        finally:
            connection.close()
    except (HTTPException, OSError, ValueError, FumehoodError):
        pass  # it ends when it has been idle for long enough
