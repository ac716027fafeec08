"""A real worker process, spoken to over a socket pair as the host does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fumehood.guest.wire import FRAME, MAX_FRAME
from support import HANG_S, wait_until

START = "from fumehood.guest import worker; worker.import_ahead(); worker.serve(0, 0, lambda: None)"


class Ran(NamedTuple):
    displays: list[dict[str, Any]]
    exit_code: int
    error: str | None
    interrupted: bool
    stdout: str
    stderr: str

    @property
    def value(self) -> str:
        return str(self.displays[-1]["text/plain"])


class Worker:
    def __init__(self, directory: Path) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(HANG_S)
        self._files = [tempfile.TemporaryFile(dir=directory) for _ in range(2)]  # noqa: SIM115
        environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
        self.process = subprocess.Popen(
            [sys.executable, "-X", "utf8", "-c", START],
            stdin=theirs,
            stdout=self._files[0],
            stderr=self._files[1],
            env=environment,
        )
        theirs.close()
        self._seen = [0, 0]
        self._count = 0

    def send(self, code: str) -> int:
        self._count += 1
        body = json.dumps({"op": "run", "id": self._count, "code": code}).encode()
        self.socket.sendall(FRAME.pack(len(body)) + body)
        return self._count

    def receive(self) -> dict[str, Any]:
        (size,) = FRAME.unpack(self._read(FRAME.size))
        assert size <= MAX_FRAME
        frame: dict[str, Any] = json.loads(self._read(size), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
        assert frame["id"] == self._count
        return frame

    def finish(self) -> Ran:
        displays = []
        assert self.receive() == {"id": self._count, "event": "began"}
        while (frame := self.receive())["event"] == "display":
            assert frame.keys() == {"id", "event", "data"}
            displays.append(frame["data"])
        assert frame.keys() == {"id", "event", "exit_code", "error", "interrupted"}
        printed = [self._printed(index) for index in range(2)]
        return Ran(displays, frame["exit_code"], frame["error"], frame["interrupted"], *printed)

    def run(self, code: str) -> Ran:
        self.send(code)
        return self.finish()

    def interrupt(self) -> None:
        os.kill(self.process.pid, signal.SIGINT)

    def await_output(self, text: str) -> None:
        assert wait_until(lambda: text.encode() in self._tail(0)), f"{text!r} was never printed"

    def close(self) -> int:
        self.socket.close()
        try:
            return self.process.wait(HANG_S)
        finally:
            self.process.kill()
            self.process.wait()
            for file in self._files:
                file.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                pytest.fail(f"the worker is gone: {self._tail(1).decode()}")
            data += chunk
        return data

    def _tail(self, index: int) -> bytes:
        fd = self._files[index].fileno()
        return os.pread(fd, os.fstat(fd).st_size, self._seen[index])

    def _printed(self, index: int) -> str:
        data = self._tail(index)
        self._seen[index] += len(data)
        return data.decode()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Worker]]:
    workers: list[Worker] = []

    def make() -> Worker:
        workers.append(Worker(tmp_path))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


@pytest.fixture(scope="module")
def plotter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One that has loaded matplotlib, which takes long; for runs that leave nothing behind."""
    worker = Worker(tmp_path_factory.mktemp("plotter"))
    assert worker.run("import matplotlib.pyplot as plt").exit_code == 0
    yield worker
    worker.close()


@pytest.fixture
def worker(start: Callable[[], Worker]) -> Worker:
    return start()
