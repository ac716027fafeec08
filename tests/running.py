"""One server process on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import httpx2

from support import HANG_S, wait_until

TOKENS = {
    "alice": "alice-token-0123456789",
    "bob": "bob-token-0123456789ab",
    "dave": "dave-token-0123456789a",  # of the tests that look at all that a token has run
}
OPERATOR = {"name": "operator", "token": "operator-token-0123456", "role": "metrics"}  # who reads all numbers
PATIENT = Path(__file__).parent / "server" / "patient.py"
LIVE: WeakSet[Running] = WeakSet()  # those that a test still has, for the report of its failure


def python(is_measured: bool) -> list[str]:
    """An interpreter; one whose lines count for the coverage of a run that measures it."""
    data = os.environ.get("FUMEHOOD_COVERAGE")
    if not data or not is_measured:
        return [sys.executable]
    settings = Path(__file__).parents[1] / "pyproject.toml"
    return [sys.executable, "-m", "coverage", "run", "--parallel-mode", f"--data-file={data}", f"--rcfile={settings}"]


@contextmanager
def held_port() -> Iterator[str]:
    """A port for a server that is started again: nobody else is given it meanwhile."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that the server may listen there all the same
        held.bind(("127.0.0.1", 0))
        yield str(held.getsockname()[1])


class Running:
    """One server process. A patient one has none but the deadlines of a hang: see patient.py."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        env: dict[str, str] | None = None,
        tokens: Any = None,
        is_measured: bool = False,
        is_patient: bool = False,
        trusts: ssl.SSLContext | None = None,
    ) -> None:
        self.directory, self.url = directory, "a server that did not start"
        self.socket: str | None = None  # where it listens, if not at a port
        self._trusts = trusts
        self.token_file = directory / "tokens.json"
        entries = tokens if tokens is not None else [{"name": n, "token": t} for n, t in TOKENS.items()]
        self.give(entries if isinstance(entries, str) else [*entries, OPERATOR])
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SANDBOX_", "FUMEHOOD_"))}
        own = {"SANDBOX_ARTIFACTS_DIR": str(directory / "artifacts"), "XDG_CONFIG_HOME": str(directory / "xdg")}
        if is_patient:
            own["SANDBOX_TIMEOUT_SEC"] = f"{HANG_S:g}"
        module = [str(PATIENT), "fumehood"] if is_patient else ["-m", "fumehood"]
        where = () if "--unix-socket" in flags or "--options-file" in flags else ("--port", "0")
        self._log = (directory / "log").open("wb")
        LIVE.add(self)
        self.process = subprocess.Popen(
            [*python(is_measured), *module, "serve", *where, "--token-file", str(self.token_file), *flags],
            cwd=directory,
            env={**kept, **own, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=self._log,
            encoding="utf-8",
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.fullmatch(r"fumehood serves at (https?://[^/]+|unix:[^,]+)(/|, |$).*\n", line)
        if found is None:
            self.stop()
            raise AssertionError(f"the server did not start; it printed {line!r}, and its log is\n{self.log()}")
        self.url, self.socket = found[1], None
        if found[1].startswith("unix:"):
            self.url, self.socket = "http://localhost", found[1].removeprefix("unix:")

    def give(self, entries: Any) -> None:
        """The tokens from now on; the file is never seen half written."""
        new = self.token_file.with_suffix(".new")
        text = entries if isinstance(entries, str) else "".join(json.dumps(entry) + "\n" for entry in entries)
        new.write_text(text, encoding="utf-8")
        new.replace(self.token_file)

    def client(self, name: str = "alice", **kinds: Any) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {TOKENS.get(name, name)}"}
        return self._client(headers=headers, **kinds)

    def _client(self, **kinds: Any) -> httpx2.Client:
        if self.socket is not None:
            kinds["transport"] = httpx2.HTTPTransport(uds=self.socket)
        return httpx2.Client(base_url=self.url, timeout=HANG_S, verify=self._trusts or False, **kinds)

    def get(self, path: str, **kinds: Any) -> httpx2.Response:
        """What anybody is told there."""
        with self._client() as http:
            return http.get(path, **kinds)

    def number(self, name: str) -> float:
        """One of its numbers for Prometheus, over all workers and labels; 0 for what it has not counted yet."""
        text = self.numbers()
        return sum(float(found) for found in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def numbers(self) -> str:
        """All that it has for Prometheus."""
        with self.client(OPERATOR["token"]) as http:
            return http.get("/metrics").text

    def executions(self) -> int:
        """How many run just now."""
        return int(self.number("fumehood_running"))

    def log(self) -> str:
        return (self.directory / "log").read_text("utf-8", "replace")

    def lines(self) -> list[dict[str, Any]]:
        """The log, but for a line that is being written."""
        return [json.loads(line) for line in self.log().rpartition("\n")[0].splitlines()]

    def workers(self, count: int) -> set[int]:
        """The processes that have served so far, when there are so many. The log is written beside the server."""

        def started() -> set[int]:
            return {line["pid"] for line in self.lines() if line["event"] == "started"}

        assert wait_until(lambda: len(started()) >= count)
        return started()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return code
