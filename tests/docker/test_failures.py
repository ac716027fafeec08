"""Each way in which Docker can be missing or break has a message of its own, in time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_api import ask, containers_of, said

from docker_engine import Daemon
from fumehood import BackendUnavailable, FumehoodError, SandboxLost, get_sandbox, open_session
from fumehood.backends.docker import client, container, pool
from fumehood.backends.docker.client import Refused, translated
from fumehood.sync_session import SyncStream
from fumehood.types import Limits, Output
from support import HANG_S, wait_until


def refusal(**settings: Any) -> str:
    with get_sandbox(type="docker", warm_cells=0, **settings) as sandbox, pytest.raises(FumehoodError) as caught:
        sandbox.execute("print(1)")
    return f"{type(caught.value).__name__}: {caught.value}"


def test_what_an_image_says_cannot_drive_a_terminal() -> None:
    async def fate() -> None:
        return None

    ended: Any = SimpleNamespace(fate=fate, link=SimpleNamespace(said="first\n\x1b]0;title\x07\u202elast"))
    with pytest.raises(BackendUnavailable, match="has no guest that starts") as caught:
        asyncio.run(container.Container._explain(ended, "image", Limits()))
    assert str(caught.value).isprintable()


def test_no_daemon(tmp_path: Path) -> None:
    said = refusal(docker_host=f"unix://{tmp_path}/none.sock")
    assert said.startswith("BackendUnavailable: Docker daemon not available")
    assert "Set SANDBOX_TYPE=local or start Docker daemon" in said


@contextlib.contextmanager
def socket_path() -> Iterator[str]:
    """The kernel takes only short ones."""
    with tempfile.TemporaryDirectory(prefix="fumehood-test-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        yield f"{directory}/s"


def test_a_socket_that_nobody_listens_on() -> None:
    with socket_path() as path, socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
        assert "Docker daemon not available" in refusal(docker_host=f"unix://{path}")


def test_no_permission() -> None:
    with socket_path() as path, socket.socket(socket.AF_UNIX) as closed:
        closed.bind(path)
        os.chmod(path, 0)
        closed.listen()
        said = _as_somebody_else(path) if os.geteuid() == 0 else refusal(docker_host=f"unix://{path}")
    assert "BackendUnavailable" in said
    assert "no permission" in said
    assert "docker $USER" in said


def _as_somebody_else(path: str) -> str:
    """Root may do everything."""
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    if subprocess.run([*become, "-c", "import fumehood"], capture_output=True, cwd="/", timeout=HANG_S).returncode:
        pytest.skip("nobody else may run this interpreter or read this checkout")
    code = f"""
from fumehood import get_sandbox
try:
    get_sandbox(type="docker", docker_host="unix://{path}").execute("1")
except Exception as error:
    print(type(error).__name__, error)
"""
    further = {"cwd": "/", "env": {"PATH": os.defpath}}
    done = subprocess.run([*become, "-c", code], capture_output=True, encoding="utf-8", timeout=HANG_S, **further)
    return done.stdout


@pytest.mark.usefixtures("docker")
def test_a_missing_image_names_the_command_that_builds_it() -> None:
    said = refusal(docker_image="no-such-image:latest")
    assert "BackendUnavailable" in said
    assert "`fumehood image build`" in said


@pytest.mark.usefixtures("docker")
def test_what_is_no_name_of_an_image_names_the_setting() -> None:
    said = refusal(docker_image="BAD NAME")
    assert "ConfigurationError" in said
    assert "DOCKER_IMAGE is no name of an image" in said


@pytest.mark.usefixtures("docker")
def test_an_unknown_runtime_names_the_setting() -> None:
    assert "DOCKER_RUNTIME" in refusal(docker_runtime="no-such-runtime")


@pytest.mark.usefixtures("docker")
def test_too_little_memory_to_start_names_the_setting() -> None:
    assert "DOCKER_MEMORY_LIMIT" in refusal(docker_memory_limit="5m")


@pytest.mark.parametrize(
    ("said", "kind", "named"),
    [
        (
            "client version 1.99 is too new. Maximum supported API version is 1.41",
            "BackendUnavailable",
            "update Docker",
        ),
        ("write /var/lib/docker/x: no space left on device", "EngineFailed", "docker system prune"),
        ("something else", "EngineFailed", "something else"),
    ],
)
def test_what_the_engine_refuses_is_translated(said: str, kind: str, named: str) -> None:
    error = translated(Refused(500, said), "create a container")
    assert type(error).__name__ == kind
    assert named in str(error)


@contextlib.contextmanager
def stub(*answers: bytes) -> Iterator[str]:
    """Something that says these words in turn, one to a connection."""
    with socket_path() as path, socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"unix://{path}"
        thread.join(HANG_S)
        assert not thread.is_alive()


def http_answer(status: str, body: str, **headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def test_an_engine_that_is_too_old_is_told() -> None:
    with stub(http_answer("200 OK", "OK", Api_Version="1.24")) as host:
        said = refusal(docker_host=host)
    assert "BackendUnavailable" in said
    assert "too old: its API is 1.24, and 1.41" in said


def test_an_engine_that_is_too_new_is_told() -> None:
    words = "client version 1.47 is too old. Minimum supported API version is 1.60, please upgrade your client"
    answers = http_answer("200 OK", "OK", Api_Version="1.62"), http_answer("400 Bad Request", words)
    with stub(*answers) as host:
        said = refusal(docker_host=host)
    assert "BackendUnavailable" in said
    assert "Minimum supported API version is 1.60" in said
    assert "update Docker, or fumehood" in said


def test_what_is_no_engine_is_told() -> None:
    with stub(http_answer("200 OK", "hello")) as host:
        assert "is no Docker engine" in refusal(docker_host=host)
    with stub(b"220 mail ready\r\n") as host:
        assert "Docker daemon not available" in refusal(docker_host=host)


def test_a_full_disk_is_told(daemon: Daemon) -> None:
    daemon.stop()
    with daemon.full_disk():
        daemon.start()
        said = refusal()
        assert containers_of(daemon.address, os.getpid()) == []
    assert "EngineFailed: the Docker engine's disk is full" in said
    assert "docker system prune" in said
    daemon.start()
    with get_sandbox(type="docker", warm_cells=0) as sandbox:
        assert sandbox.execute("print(1)").stdout == "1\n"


# ---- while a program runs

SLEEP = "open('/tmp/up', 'w').close(); print('up', flush=True); import time; time.sleep(3600)"
WAITS = """
import os, time
open('/tmp/up', 'w').close()
while not os.path.exists('/tmp/go'): time.sleep(0.05)
print('done')
"""


@pytest.mark.usefixtures("docker")
def test_memory_names_the_setting_to_raise() -> None:
    with get_sandbox(type="docker", docker_memory_limit="64m", warm_cells=0) as sandbox:
        result = sandbox.execute("keep = b'x' * (200 << 20)")
    assert (result.exit_code, result.meta["reason"]) == (137, "memory")
    assert "64 MB" in result.stderr
    assert "DOCKER_MEMORY_LIMIT" in result.stderr


@pytest.mark.usefixtures("docker")
def test_the_data_stack_fits_in_the_default_memory() -> None:
    code = """
import numpy, polars, matplotlib.pyplot as plt, sklearn.linear_model
frame = polars.DataFrame({"a": range(1000), "b": range(1000)})
plt.plot(frame["a"], frame["b"]); plt.savefig("x.png")
print(sklearn.linear_model.LinearRegression().fit(frame[["a"]].to_numpy(), frame["b"]).coef_)
"""
    with get_sandbox(type="docker", docker_cpu_limit=2, warm_cells=0) as sandbox:
        result = sandbox.execute(code)
    assert (result.exit_code, result.stdout) == (0, "[1.]\n"), result


def shell(address: str, identity: str, script: str) -> bool:
    """Whether it could be run to its end, beside the program of this container."""
    try:
        request = {"Cmd": ["sh", "-c", script], "AttachStdout": True}  # else nobody waits for its end
        made = ask(address, "POST", f"/containers/{identity}/exec", request)
        said(address, "POST", f"/exec/{made['Id']}/start", {"Detach": False})
        return bool(ask(address, "GET", f"/exec/{made['Id']}/json")["ExitCode"] == 0)
    except (AssertionError, OSError):  # it does not run yet, or no more
        return False


def wait_until_it_runs(address: str, other_than: str = "") -> str:
    """The container of ours whose program says that it is up."""
    up: list[str] = []

    def look() -> bool:
        found = [each["Id"] for each in containers_of(address, os.getpid()) if each["State"] == "running"]
        up[:] = [each for each in found if each != other_than and shell(address, each, "test -e /tmp/up")]
        return bool(up)

    assert wait_until(look)
    return up[0]


@contextlib.contextmanager
def beside(do: Callable[[], object]) -> Iterator[None]:
    """Done by another thread meanwhile; what goes wrong there is told."""
    with ThreadPoolExecutor(1) as threads:
        doing = threads.submit(do)
        yield
        doing.result(HANG_S)


def lost(do: Callable[[], object]) -> str:
    """What a session says when this happens to its program."""
    with open_session(type="docker", warm_cells=0) as session:
        session.run("x = 1")
        with session.stream(SLEEP) as stream:
            assert next(stream).data == b"up\n"
            do()
            with pytest.raises(SandboxLost) as caught:
                list(stream)
        return str(caught.value)


def run_again(address: str, do: Callable[[], object]) -> None:
    """What ran by itself and without a network is run again."""

    def end_the_first() -> None:
        first = wait_until_it_runs(address)
        do()
        second = wait_until_it_runs(address, other_than=first)
        while second in {each["Id"] for each in containers_of(address, os.getpid())}:
            shell(address, second, "touch /tmp/go")  # which may end it before this is answered

    with get_sandbox(type="docker", warm_cells=0) as sandbox, beside(end_the_first):
        result = sandbox.execute(WAITS)
    assert (result.exit_code, result.stdout) == (0, "done\n")


def each(address: str, verb: str, path: str) -> None:
    for found in containers_of(address, os.getpid()):
        with contextlib.suppress(AssertionError):  # it is on its way out
            ask(address, verb, path.format(found["Id"]))


ENDS = pytest.mark.parametrize(
    ("verb", "path"), [("POST", "/containers/{}/kill"), ("DELETE", "/containers/{}?force=1")], ids=["kill", "rm"]
)


@ENDS
def test_a_container_that_somebody_ends_is_told(docker: str, verb: str, path: str) -> None:
    assert "killed or removed from outside" in lost(lambda: each(docker, verb, path))
    assert wait_until(lambda: containers_of(docker, os.getpid()) == [])


@ENDS
def test_a_program_whose_container_somebody_ends_is_run_again(docker: str, verb: str, path: str) -> None:
    run_again(docker, lambda: each(docker, verb, path))
    assert wait_until(lambda: containers_of(docker, os.getpid()) == [])


def test_after_its_container_is_gone_a_session_starts_anew(docker: str) -> None:
    with open_session(type="docker", warm_cells=0) as session:
        session.run("x = 1")
        each(docker, "POST", "/containers/{}/kill")
        with pytest.raises(SandboxLost, match="killed or removed from outside"):
            session.run(SLEEP)
        assert "NameError" in session.run("x").stderr
    assert wait_until(lambda: not containers_of(docker, os.getpid()))


def nothing_is_left(daemon: Daemon) -> bool:
    """After the next start; what was asked of an engine that hung may come into being later still."""

    def start() -> bool:
        with get_sandbox(type="docker", warm_cells=0) as sandbox:
            sandbox.check()
        return containers_of(daemon.address, os.getpid()) == []

    return wait_until(start)


def test_a_killed_daemon_is_told_and_nothing_is_left_after_the_next_start(daemon: Daemon) -> None:
    assert "the Docker daemon went away" in lost(daemon.kill)
    assert refusal().startswith("BackendUnavailable: Docker daemon not available")
    daemon.start()
    assert nothing_is_left(daemon)


def test_a_program_whose_daemon_is_killed_is_told_so(daemon: Daemon) -> None:
    def kill() -> None:
        wait_until_it_runs(daemon.address)
        daemon.kill()

    with get_sandbox(type="docker", warm_cells=0) as sandbox, beside(kill):
        with pytest.raises(SandboxLost, match=r"the Docker daemon went away.*Docker daemon not available"):
            sandbox.execute(SLEEP)
    daemon.start()
    assert nothing_is_left(daemon)


def test_a_daemon_that_is_restarted_is_told_and_nothing_is_left(daemon: Daemon) -> None:
    def restart() -> None:
        daemon.stop()
        daemon.start()

    said = lost(restart)
    assert "a restart of the daemon" in said or "the Docker daemon went away" in said
    assert nothing_is_left(daemon)


def test_a_daemon_that_hangs_does_not_hold_the_deadline_up(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it hangs, only a deadline of our own can end what is done here."""
    with get_sandbox(type="docker", warm_cells=0) as sandbox:
        for timeout in (4, 16, 64, 256):
            with SyncStream(sandbox.stream(SLEEP, timeout=timeout)) as stream:
                if is_up := isinstance(next(stream), Output):
                    daemon.signal(signal.SIGSTOP)
                list(stream)
            assert stream.result.meta["timed_out"] is True
            if is_up:
                break
        monkeypatch.setattr(container, "_MAKE_S", 3.0)
        with pytest.raises(BackendUnavailable, match="did not create a container in 3 s"):
            sandbox.execute("print(1)")
        daemon.signal(signal.SIGCONT)
        monkeypatch.setattr(container, "_MAKE_S", HANG_S)
        assert sandbox.execute("print(1)").stdout == "1\n"
    assert nothing_is_left(daemon)


def test_a_daemon_that_hangs_from_the_start_is_told(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PING_S", 2.0)
    daemon.signal(signal.SIGSTOP)
    unknown = daemon.address.replace("docker.sock", "./docker.sock")  # whatever other tests have met
    assert "Docker daemon not available" in refusal(docker_host=unknown)


ANSWERS = {"/_ping": b"OK", "/info": b'{"NCPU": 2}', "/containers/json": b"[]"}


class Hanging:
    """Takes every connection, and answers only what ends with one of these."""

    def __init__(self, path: str, answered: tuple[str, ...]) -> None:
        self._answered = answered
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(100)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._talk, args=(self._listening.accept()[0],), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        heard = b""
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(65536):
                heard += data
                while b"\r\n\r\n" in heard:
                    head, _, heard = heard.partition(b"\r\n\r\n")
                    self._answer(connection, head.split(None, 2)[1].decode().partition("?")[0])

    def _answer(self, connection: socket.socket, path: str) -> None:
        for end in self._answered:
            if path.endswith(end):
                said = ANSWERS[end]
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nApi-Version: 1.47\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said)
                )


HUNG = """
from fumehood import BackendUnavailable, get_sandbox, lifetime, open_session
from fumehood.backends import docker
from fumehood.backends.docker import client, container, pool
client.ANSWER_S = client._LAST_S = container._MAKE_S = pool._CLOSE_S = 3600.0
client._PING_S = client.ALIVE_S = docker._READY_S = lifetime._PATIENCE_S = 1.0
made = []
make = docker.DockerBackend.create
docker.DockerBackend.create = lambda *arguments: made.append(1) or make(*arguments)
with {opened}(type='docker', docker_host={address!r}, store_code='never', timeout_sec=2) as sandbox:
    try: sandbox.{call}
    except BackendUnavailable as error: print(error)
print(len(made))
"""
OPENED_AND_CALLED = [
    ("get_sandbox", "execute('print(1)')"),
    ("open_session", "run('print(1)')"),
    ("open_session", "exec(['true'])"),
    ("open_session", "write('/workspace/a', 'a')"),
]


@pytest.mark.parametrize(("opened", "call"), OPENED_AND_CALLED)
@pytest.mark.parametrize("answered", [(), ("/_ping",), tuple(ANSWERS)], ids=["nothing", "ping", "all but create"])
def test_an_engine_that_hangs_costs_the_time_out_and_a_moment(
    answered: tuple[str, ...], opened: str, call: str
) -> None:
    """Whichever answer it is that does not come: to wait for that one would take an hour."""
    with socket_path() as path:
        engine = Hanging(path, answered)
        try:
            command = [sys.executable, "-c", HUNG.format(address=f"unix://{path}", opened=opened, call=call)]
            done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=HANG_S, check=False)
        finally:
            engine.close()
    assert (done.returncode, done.stderr) == (0, "")
    assert path in done.stdout
    if "did not give a container in 2 s" in done.stdout:
        assert done.stdout.endswith("\n1\n"), "what took so long is not tried again"
    else:
        assert "no answer in time" in done.stdout


def test_closing_looks_whether_the_engine_still_answers(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stopped in the middle of a run: nobody waits for what is to be removed."""
    for name in ("client.ANSWER_S", "client._LAST_S", "pool._CLOSE_S"):
        monkeypatch.setattr(f"fumehood.backends.docker.{name}", 3600.0)
    with get_sandbox(type="docker", warm_cells=1) as sandbox:
        assert sandbox.execute("print(1)").stdout == "1\n"
        monkeypatch.setattr(client, "ALIVE_S", 1.0)
        daemon.signal(signal.SIGSTOP)
    daemon.signal(signal.SIGCONT)
    assert nothing_is_left(daemon)


def test_closing_does_not_wait_for_an_engine_that_hangs(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_CLOSE_S", 2.0)
    monkeypatch.setattr(client, "ANSWER_S", 3600.0)
    with get_sandbox(type="docker", warm_cells=1) as sandbox:
        assert sandbox.execute("print(1)").stdout == "1\n"
        daemon.signal(signal.SIGSTOP)
    daemon.signal(signal.SIGCONT)
    assert nothing_is_left(daemon)
