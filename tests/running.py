"""One server process on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2

TOKENS = {"alice": "alice-token-0123456789", "bob": "bob-token-0123456789ab"}
START_S = 60.0
REPLY_S = 60.0


def python(is_measured: bool) -> list[str]:
    """An interpreter; one whose lines count for the coverage of a run that measures it."""
    data = os.environ.get("FUMEHOOD_COVERAGE")
    if not data or not is_measured:
        return [sys.executable]
    settings = Path(__file__).parents[1] / "pyproject.toml"
    return [sys.executable, "-m", "coverage", "run", "--parallel-mode", f"--data-file={data}", f"--rcfile={settings}"]


class Running:
    """One server process."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        env: dict[str, str] | None = None,
        tokens: Any = None,
        is_measured: bool = False,
    ) -> None:
        self.directory = directory
        file = directory / "tokens.json"
        entries = tokens if tokens is not None else [{"name": n, "token": t} for n, t in TOKENS.items()]
        file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SANDBOX_", "FUMEHOOD_"))}
        self._log = (directory / "log").open("wb")
        self.process = subprocess.Popen(
            [*python(is_measured), "-m", "fumehood", "serve", "--port", "0", "--token-file", str(file), *flags],
            cwd=directory,
            env={**kept, "SANDBOX_ARTIFACTS_DIR": str(directory / "artifacts"), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, (line, self.log())
        self.url = "http://" + line.split("http://")[1].split("/")[0]

    def client(self, name: str = "alice", **kinds: Any) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {TOKENS.get(name, name)}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=REPLY_S, **kinds)

    def executions(self) -> int:
        """How many run just now."""
        with self.client() as http:
            numbers = http.get("/metrics").text
        return sum(int(float(found)) for found in re.findall(r"^fumehood_running(?:{.*})? (\S+)$", numbers, re.M))

    def log(self) -> str:
        return (self.directory / "log").read_text("utf-8", "replace")

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return code
