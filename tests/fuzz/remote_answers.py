"""What a server answers: it is another machine, and garbage from it is one of our errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from unittest.mock import patch

import httpx2

from fumehood.backends.base import SandboxSpec
from fumehood.backends.remote import RemoteBackend, client
from fumehood.config_table import Settings
from fumehood.config_values import Secret
from fumehood.errors import FumehoodError
from fumehood.types import Command

from .target import Target, finished

_SETTINGS = Settings(remote_url="http://127.0.0.1:1", remote_token=Secret("t" * 20))
_INFO = b'{"protocol":1,"receipt":{"level":"sealed"}}'
_MADE = b'{"session_id":"s","places":{"workspace":"/workspace","tmp":"/tmp"}}'


def check(data: bytes) -> None:
    """Answers, one after another; the first character of each says with which status."""
    answers = data.split(b"\xff")
    with patch.object(client, "WAIT_S", 0.0):  # a server that is too busy is not asked again
        finished(_one_shot(iter(answers)))
        finished(_one_shot(iter([b"0" + _INFO, *answers])))
        finished(_session(iter(answers)))
        finished(_session(iter([b"0" + _INFO, b"0" + _MADE, *answers])))


async def _one_shot(answers: Iterator[bytes]) -> None:
    backend = _backend(answers)
    try:
        sandbox = await backend.create(SandboxSpec(_SETTINGS.limits(), False, hands_back=True))
        try:
            process = await sandbox.start(Command(("python", "main.py"), b""))
            while await process.read(5) is not None:
                pass
        except FumehoodError:
            pass
        try:
            for found in await sandbox.list("/tmp"):
                await sandbox.read(found.path, 100)
        except FumehoodError:
            pass
        await sandbox.close()
    except FumehoodError:
        pass
    finally:
        await backend.close()


async def _session(answers: Iterator[bytes]) -> None:
    backend = _backend(answers)
    try:
        sandbox = await backend.create(SandboxSpec(_SETTINGS.limits(), False, keeps=True))
        for use in (
            lambda: sandbox.list("/tmp"),
            lambda: sandbox.read("/tmp/a", 9),
            lambda: sandbox.write("/tmp/a", b""),
        ):
            try:
                await use()
            except FumehoodError:
                pass
        await sandbox.close()
    except FumehoodError:
        pass
    finally:
        await backend.close()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


def _backend(answers: Iterator[bytes]) -> RemoteBackend:
    def answer(_: httpx2.Request) -> httpx2.Response:
        said = next(answers, b"0")
        status = {b"4": 404, b"5": 503, b"2": 422}.get(said[:1], 200)
        headers = (
            {"x-fumehood-version": "1", "retry-after": said[1:3].decode("ascii", "ignore")} if said[:1] != b"x" else {}
        )
        return httpx2.Response(status, headers=headers, stream=_Body(said[1:]))

    backend = RemoteBackend(_SETTINGS)
    made = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    with patch.object(httpx2, "AsyncClient", lambda **_: made):
        backend._client()
    return backend


TARGET = Target("remote_answers", check)
