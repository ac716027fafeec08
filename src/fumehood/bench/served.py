"""The server: one client beside the Python API, and many clients at once. The client is thin, its own cost is small."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..errors import EngineFailed
from . import candidates, load
from .samples import Candidate, Series, interleave

CLIENTS = 200
EACH = 5
PAUSE_S = 0.02  # for the cell that the one before left to be made
API = "Python API, execute()"
API_ASYNC = "Python API, execute_async()"
SERVED = "POST /execute"
NARROWED = "POST /execute, limits of its own"
_LIMITS = {"memory_mb": 256, "processes": 64, "disk_mb": 64}
_BARE = "bare subprocess, short pause"
_REPLY_S = 60.0
_HEAD_END = b"\r\n\r\n"


class NotServed(Exception):
    """No server is to be had here; the text says why."""


class Server:
    """A server process of its own, on loopback, with default settings."""

    def __init__(self, process: subprocess.Popen[str], address: tuple[str, int], token: str) -> None:
        self.process, self.address, self.token = process, address, token

    def request(self, code: str, limits: dict[str, int] | None = None) -> bytes:
        """A whole `POST /execute`."""
        body = json.dumps({"code": code} if limits is None else {"code": code, "limits": limits}).encode()
        head = (
            "POST /execute HTTP/1.1",
            f"Host: {self.address[0]}:{self.address[1]}",
            f"Authorization: Bearer {self.token}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        return "\r\n".join(head).encode() + _HEAD_END + body

    def cpu_s(self) -> float:
        """Of its process; the programs' is not in it."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving() -> Iterator[Server]:
    """`fumehood serve` as a user starts it, but for a free port."""
    token = secrets.token_urlsafe(24)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (directory / "token").write_text(token)
        (directory / "env").write_text("SANDBOX_STORE_CODE=never\n")
        log = stack.enter_context((directory / "log").open("w+"))
        argv = ["serve", "--port", "0", "--backend", "local", "--isolation", "sealed", "--token-file", "token"]
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "fumehood", *argv, "--env-file", "env"],
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "http://" not in line:
                process.wait()
                log.seek(0)
                raise NotServed((log.read().strip().splitlines() or ["it said nothing"])[-1])
            host, _, port = line.partition("http://")[2].partition("/")[0].strip().rpartition(":")
            yield Server(process, (host, int(port)), token)
        finally:
            process.terminate()


def measure(
    rounds: int, progress: Callable[[int, int], None], say: Callable[[str], None], clients: int = CLIENTS
) -> tuple[list[Series], dict[str, Any]]:
    """Series of one client's calls and of the API's, and what many clients at once got, or why there is no server."""
    try:
        with serving() as server, ExitStack() as stack:
            series = interleave(_candidates(stack, server), rounds, progress, PAUSE_S)
            say(f"server: {clients} clients at once")
            found = at_once(server, clients, EACH)
            say(f"Python API: {clients} at once")
            with candidates.sealed() as sandbox:
                found["api_per_second"] = load.throughput(candidates.execution(sandbox), clients, clients * EACH)
            return series, found
    except NotServed as missing:
        say(f"server: skipped, {missing}")
        return [], {"skipped": str(missing)}


def one_client(server: Server, stack: ExitStack, limits: dict[str, int] | None = None) -> Callable[[], None]:
    """Calls on one connection that is kept."""
    connection = stack.enter_context(socket.create_connection(server.address, _REPLY_S))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request = server.request(candidates.CODE, limits)

    def call() -> None:
        connection.sendall(request)
        received = b""
        while (length := _length(received)) is None or len(received) < length:
            piece = connection.recv(65536)
            if not piece:
                raise EngineFailed(f"the server hung up after {received!r}")
            received += piece
        if (wrong := _wrong(received, candidates.OUTPUT)) is not None:
            raise EngineFailed(f"the server answered {wrong}")

    return call


def at_once(server: Server, clients: int, each: int) -> dict[str, Any]:
    """Each client has a connection and programs of its own, and looks whether the answers are those to its own."""
    before = server.cpu_s()
    started = time.perf_counter()
    series, errors = asyncio.run(_all(server, clients, each))
    seconds, total = time.perf_counter() - started, clients * each
    return {
        "clients": clients,
        "requests": total,
        "errors": len(errors),
        "first_errors": errors[:3],
        "per_second": total / seconds,
        "p50_ms": series.p50 * 1000 if series.seconds else 0.0,
        "p95_ms": series.percentile(95) * 1000 if series.seconds else 0.0,
        "cpu_ms_each": (server.cpu_s() - before) / total * 1000,
    }


async def _all(server: Server, clients: int, each: int) -> tuple[Series, list[str]]:
    series, errors = Series(f"{clients} clients at once"), list[str]()

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        try:
            for turn in range(each):
                started = time.perf_counter()
                writer.write(server.request(f"print({number} * 1000 + {turn})"))
                async with asyncio.timeout(_REPLY_S):
                    received = await reader.readuntil(_HEAD_END)
                    received += await reader.readexactly((_length(received) or 0) - len(received))
                wrong = _wrong(received, f"{number * 1000 + turn}\n")
                if wrong is None:
                    series.seconds.append(time.perf_counter() - started)
                else:
                    errors.append(wrong)
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            errors.append(f"{type(error).__name__}: {error}")
        finally:
            writer.close()

    done = await asyncio.gather(*(client(number) for number in range(clients)), return_exceptions=True)
    errors += [repr(error) for error in done if error is not None]
    return series, errors


def _candidates(stack: ExitStack, server: Server) -> list[Candidate]:
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    direct, driven = (stack.enter_context(candidates.sealed()) for _ in range(2))

    def driven_call() -> None:
        candidates.check(loop.run_until_complete(driven.execute_async(candidates.CODE)))

    return [
        candidates.bare(name=_BARE),
        Candidate(API, candidates.execution(direct)),
        Candidate(API_ASYNC, driven_call),
        Candidate(SERVED, one_client(server, stack)),
        Candidate(NARROWED, one_client(server, stack, _LIMITS)),
    ]


def _length(received: bytes) -> int | None:
    """Of the whole answer, as soon as its head is there."""
    head, end, _ = received.partition(_HEAD_END)
    if not end:
        return None
    _, _, length = head.lower().partition(b"content-length: ")
    return len(head) + len(end) + int(length.partition(b"\r\n")[0] or 0)


def _wrong(received: bytes, wanted: str) -> str | None:
    """None for the answer that was wanted."""
    head, _, body = received.partition(_HEAD_END)
    status = head.partition(b"\r\n")[0].decode("latin-1")
    try:
        printed = json.loads(body).get("stdout")
    except ValueError:
        printed = None
    if printed == wanted and status.split()[1:2] == ["200"]:
        return None
    return f"{status}: {body[:300].decode('utf-8', 'replace')}"
