"""What comes out of a container, where programs run beside the guest; and what that guest hears."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

from fumehood.backends.docker import link as host
from fumehood.backends.docker.interpreter import Interpreter
from fumehood.backends.docker.process import Program
from fumehood.backends.docker.sandbox import _Answer, _stat
from fumehood.errors import FumehoodError
from fumehood.guest import link as guest
from fumehood.guest import wire
from fumehood.types import Receipt

from .target import Target, fields, finished, piece

_KINDS = b"Hrnoedcuxbf"


def check(data: bytes) -> None:
    """The first field says how it is cut; the rest is a stream, or for each line a kind, a number and a payload."""
    how, said = fields(data, 2)
    stream = _framed(said) if b"L" in how else said
    finished(_hear(stream, piece(how, stream)))
    _hear_host(said)


def _framed(said: bytes) -> bytes:
    parts = [wire.MUX.pack(line[0], line[1] & 7, len(line) - 2) + line[2:] for line in said.split(b"\n") if line[1:]]
    whole = b"".join(parts)
    return host._DOCKER.pack(host._STDOUT, len(whole)) + whole


async def _hear(stream: bytes, size: int) -> None:
    writer: Any = SimpleNamespace(is_closing=lambda: True, transport=SimpleNamespace(abort=lambda: None))
    reader = asyncio.StreamReader()
    link = host.Link(reader, writer, lambda: None)
    container: Any = SimpleNamespace(receipt=Receipt("sealed", {}), link=link, fate=_killed, kill=_killed)
    answer = _Answer(container, {}, 100)
    interpreter = Interpreter(container)
    interpreter.begin("", None)
    programs = [Program(container, waits=False), interpreter]
    for start in range(0, len(stream), size):
        reader.feed_data(stream[start : start + size])
    reader.feed_eof()
    link._has_room.set = link._has_room.clear = lambda: None  # type: ignore[method-assign]
    await link._task
    for program in programs:
        await _read_all(program)
    try:
        for line in (await answer.wait()).splitlines():
            _stat(line).path.encode()
    except (FumehoodError, OSError):
        pass


async def _read_all(program: Program) -> None:
    said = ""
    try:
        while await program.read(0) is not None:
            pass
    except FumehoodError as error:
        said = str(error)
    finally:
        program._stop_timer()
        program._is_gone = True
        if isinstance(program, Interpreter):
            program._stop_run()
    assert said.isprintable()


async def _killed() -> str:
    return "killed"


def _hear_host(said: bytes) -> None:
    reading, writing = os.pipe()
    link = guest.Link(reading, writing)
    try:
        os.write(writing, said[:4096])
        for _ in link.receive():
            pass
    except (guest.Garbage, guest.HostGone):
        pass
    finally:
        os.close(reading)
        os.close(writing)


TARGET = Target("container_frames", check)
