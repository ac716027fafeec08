"""The server's own image, run as its documentation says: it can write next to nothing, and still seals programs off."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from docker_engine import client_of
from support import HANG_S, wait_until

ROOT = Path(__file__).parents[2]
ASK = Path(__file__).with_name("ask_server.py")
TOKEN = "of-the-container-0123456789"


def said_by(*command: str | Path, timeout: float = HANG_S, **further: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=timeout, **further)


@pytest.fixture(scope="session")
def image(docker_host: str) -> Iterator[str]:
    if shutil.which("nsenter") is None:
        pytest.skip("the server is asked with nsenter, which is not installed")
    kept = None
    while kept is None or kept.returncode != 0:
        # It may have to build it, or wait for another that does.
        made = said_by(ROOT / "scripts" / "services", "server", timeout=3600, umask=0o022)
        if made.returncode == 77:
            pytest.skip(made.stderr.strip().splitlines()[-1].removeprefix("error: "))
        assert made.returncode == 0, made.stderr
        # A run of the tests from other sources removes the images that no container is of.
        kept = said_by("docker", "create", made.stdout.strip(), env=client_of(docker_host))
        assert kept.returncode == 0 or "No such image" in kept.stderr, kept.stderr
    yield made.stdout.strip()
    said_by("docker", "rm", kept.stdout.strip(), env=client_of(docker_host))


class Container:
    """Of the server, with the options of the documentation."""

    def __init__(self, address: str, image: str, *flags: str, keep: str = "", token: str = TOKEN) -> None:
        self.env = {**client_of(address), "FUMEHOOD_TOKEN": token}
        self.id = self.docker("create", "--health-interval", "1s", *options(keep), image, *flags)

    def docker(self, *arguments: str) -> str:
        done = said_by("docker", *arguments, env=self.env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.docker("inspect", "--format", "{{json .State}}", self.id))
        return found

    def is_healthy(self) -> bool:
        return bool(self.state()["Health"]["Status"] == "healthy")

    def log(self) -> str:
        done = said_by("docker", "logs", self.id, env=self.env)
        return done.stdout + done.stderr

    def within(self, *command: str, **further: Any) -> subprocess.CompletedProcess[str]:
        """One of this machine's programs, on the container's network."""
        enter = ("nsenter", "--target", str(self.state()["Pid"]), "--net")
        return said_by(*enter, *command, **further)

    def ask(self, path: str, body: dict[str, Any], token: str = TOKEN) -> tuple[int, dict[str, Any]]:
        content = json.dumps({"timeout": HANG_S, **body})
        done = self.within(sys.executable, str(ASK), token, path, input=content)
        assert done.returncode == 0, done.stderr
        status, _, text = done.stdout.partition("\n")
        return int(status), json.loads(text)

    def runs_something(self) -> bool:
        numbers = self.within(sys.executable, str(ASK), TOKEN, "/metrics", input="").stdout
        return re.search(r"^fumehood_running\S* 1\b", numbers, re.M) is not None

    def ended(self) -> int:
        assert wait_until(lambda: self.state()["Status"] == "exited"), self.log()
        code: int = self.state()["ExitCode"]
        return code

    def remove(self) -> None:
        self.docker("rm", "--force", "--volumes", self.id)


def options(keep: str) -> list[str]:
    """Those of the documented command, but for the port: the engine has no network. `keep`: profiles to leave on."""
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8").partition("## In a container")[2]
    command = re.search(r"^docker run (--rm --read-only .*?) fumehood-server$", text, re.M | re.S)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", ""))
    found = words[words.index("--read-only") : words.index("-p")]
    for name in keep.split():
        at = found.index(f"{name}=unconfined")
        del found[at - 1 : at + 1]
    return found


Starter = Callable[..., Container]


@pytest.fixture
def start(docker_host: str, image: str) -> Iterator[Starter]:
    started: list[Container] = []

    def make(*flags: str, **further: Any) -> Container:
        started.append(Container(docker_host, image, *flags, **further))
        started[-1].docker("start", started[-1].id)
        return started[-1]

    yield make
    for container in started:
        container.remove()


def level_of(answer: dict[str, Any]) -> str:
    level: str = answer["meta"]["isolation"]["level"]
    return level


def test_it_seals_programs_off_and_may_itself_write_nothing(start: Starter) -> None:
    container = start()
    assert wait_until(container.is_healthy), container.log()
    assert container.ask("/execute", {"code": "print(6 * 7)"}, token="")[0] == 401
    assert container.ask("/execute", {"code": "print(6 * 7)"}, token="another-0123456789")[0] == 401
    status, answer = container.ask("/execute", {"code": "print(6 * 7)"})
    assert (status, answer["stdout"], answer["exit_code"], level_of(answer)) == (200, "42\n", 0, "sealed")

    look = "import os; print(os.path.exists('/opt/server'), os.path.exists('/var/lib/fumehood'), *os.environ.values())"
    seen = container.ask("/execute", {"code": look})[1]["stdout"]
    assert seen.startswith("False False ")
    assert TOKEN not in seen
    code = "keep = bytearray(b'x') * (400 << 20)"
    status, answer = container.ask("/execute", {"code": code, "limits": {"memory_mb": 100}})
    assert (status, answer["meta"]["reason"], answer["exit_code"]) == (200, "memory", 137)

    own = "import os; print(os.getuid()); open('/opt/server/x', 'w')"
    command = ["docker", "exec", container.id, "python3", "-c", own]
    done = said_by(*command, env=container.env)
    assert done.stdout == "10001\n"
    assert "Read-only file system" in done.stderr
    assert TOKEN not in container.log()


def test_a_remote_client_reaches_it(start: Starter, tmp_path: Path) -> None:
    container = start()
    assert wait_until(container.is_healthy), container.log()
    env = {
        "PATH": os.environ["PATH"],
        "SANDBOX_TYPE": "remote",
        "SANDBOX_REMOTE_URL": "http://127.0.0.1:8080",
        "SANDBOX_REMOTE_TOKEN": TOKEN,
    }
    run = (sys.executable, "-m", "fumehood", "run", "-c", "print(6 * 7)")
    done = container.within(*run, env=env, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("42\n", 0), done.stderr
    done = container.within(*run[:-3], "doctor", "--json", env=env, cwd=tmp_path)
    assert json.loads(done.stdout)["level"] == "sealed", done.stderr


def test_to_stop_it_ends_what_runs_in_time(start: Starter) -> None:
    container = start("--grace", "1")
    assert wait_until(container.is_healthy), container.log()
    got: list[tuple[int, dict[str, Any]]] = []
    body = {"code": "print('up', flush=True)\nimport time; time.sleep(3600)"}
    asking = threading.Thread(target=lambda: got.append(container.ask("/execute", body)))
    asking.start()
    assert wait_until(container.runs_something)
    container.docker("stop", "--time", "3600", container.id)  # killed by the engine, it would not end before
    asking.join(HANG_S)
    assert container.ended() == 0, container.log()
    assert '"event": "stopped"' in container.log()
    assert [status for status, _ in got] == [503]


def test_without_a_token_it_does_not_start(start: Starter) -> None:
    container = start(token="")
    assert container.ended() == 2
    assert "give a token by FUMEHOOD_TOKEN or --token-file" in container.log()


def test_under_docker_s_own_profiles_it_says_what_is_missing(start: Starter) -> None:
    container = start(keep="seccomp apparmor systempaths")
    assert container.ended() == 78
    log = container.log()
    assert "programs would run at level confined" in log
    assert "--security-opt seccomp=unconfined --security-opt apparmor=unconfined" in log
    assert "--allow-weak" in log


def test_with_nothing_to_bound_memory_it_says_what_is_missing(start: Starter) -> None:
    container = start(keep="systempaths")
    assert container.ended() == 78
    log = container.log()
    assert "nothing bounds memory" in log
    assert "--security-opt systempaths=unconfined" in log
    assert "--allow-weak" in log


def test_under_docker_s_own_profiles_it_serves_what_it_can(start: Starter) -> None:
    container = start("--allow-weak", keep="seccomp apparmor systempaths")
    assert wait_until(container.is_healthy), container.log()
    status, answer = container.ask("/execute", {"code": "print(6 * 7)"})
    assert (status, answer["stdout"], level_of(answer)) == (200, "42\n", "confined")


@pytest.mark.parametrize(
    ("keep", "level", "memory"),
    [("", "sealed", "process"), ("systempaths", "sealed", "none"), ("seccomp systempaths", "confined", "process")],
)
def test_what_each_option_gives(docker_host: str, image: str, keep: str, level: str, memory: str) -> None:
    command = ["docker", "run", "--rm", *options(keep), "--entrypoint", "fumehood", image, "doctor", "--json"]
    env = {**client_of(docker_host), "FUMEHOOD_TOKEN": TOKEN}
    done = said_by(*command, env=env)
    found = json.loads(done.stdout)
    assert (found["level"], found["axes"]["memory"]["level"]) == (level, memory)
    fix = found["axes"]["memory"]["fix"]
    assert ("systempaths=unconfined" if memory == "none" else "--memory") in fix
