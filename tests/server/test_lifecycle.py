"""How it stops, by every signal, and what a crash leaves: nothing that runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from processes import LASTING, Known, all_gone, beneath, let_go, waiting
from sockets import listen, opened, ticket
from websockets.exceptions import ConnectionClosed

from running import PATIENT, TOKENS, Running, held_port
from support import HANG_S, wait_until

Start = Callable[..., Running]
NO_END = ("--grace", "3600")  # it outlasts the test: a server that waits for it is one that hangs


def _in_thread(running: Running) -> tuple[Future[httpx2.Response], set[Known]]:
    """A request whose program has certainly begun, and that program."""

    def ask() -> httpx2.Response:
        with running.client() as client:
            return client.post("/execute", json=LASTING)

    asked = ThreadPoolExecutor(1).submit(ask)
    assert wait_until(lambda: asked.done() or waiting(running.process.pid))
    assert not asked.done(), asked.result()
    return asked, waiting(running.process.pid)


def _is_stopping(running: Running) -> bool:
    try:
        return running.get("/readyz").status_code == 503
    except httpx2.TransportError:  # of two workers the one that has ended took the connection
        return False


def test_a_signal_lets_what_runs_end_and_takes_nothing_new(start: Start) -> None:
    running = start(*NO_END)
    family = beneath(running.process.pid)
    asked, programs = _in_thread(running)
    running.process.send_signal(signal.SIGTERM)
    assert wait_until(lambda: _is_stopping(running))
    assert running.get("/healthz").status_code == 200
    with running.client() as client:
        for path, body in (("/execute", {"code": "1"}), ("/sessions", {})):
            refused = client.post(path, json=body)
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert int(refused.headers["retry-after"]) >= 1
    let_go(programs)
    found = asked.result(HANG_S)
    assert (found.status_code, found.json()["stdout"]) == (200, "here\ndone\n")
    assert running.process.wait(HANG_S) == 0
    assert all_gone(family)


def test_after_the_grace_what_runs_is_ended_and_streams_with_it(start: Start) -> None:
    running = start("--grace", "1")
    with running.client() as client:
        session = opened(client)
        with listen(running, session, ticket(client, session)) as events:
            asked, _ = _in_thread(running)
            family = beneath(running.process.pid)
            assert len(family) > 2
            running.process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed):
                events.recv(timeout=HANG_S)
            found = asked.result(HANG_S)
            assert (found.status_code, found.json()["code"]) == (503, "sandbox_lost")
            assert running.process.wait(HANG_S) == 0
    assert all_gone(family)


def test_a_stream_ends_with_an_error_when_the_server_stops(start: Start) -> None:
    running = start("--grace", "1")
    lines: list[str] = []
    with running.client() as client:
        with client.stream("POST", "/execute", json=LASTING, headers={"Accept": "application/x-ndjson"}) as stream:
            for line in stream.iter_lines():
                lines.append(line)
                if "here" in line:
                    running.process.send_signal(signal.SIGTERM)
    assert '"error"' in lines[-1]
    assert '"sandbox_lost"' in lines[-1]
    assert running.process.wait(HANG_S) == 0


def test_sigint_stops_it_and_a_second_one_does_not_wait(start: Start) -> None:
    running = start(*NO_END)
    asked, _ = _in_thread(running)
    family = beneath(running.process.pid)
    running.process.send_signal(signal.SIGINT)
    assert wait_until(lambda: _is_stopping(running))
    assert running.process.poll() is None  # it waits for the program
    assert waiting(running.process.pid)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(HANG_S) == 128 + signal.SIGINT
    assert asked.result(HANG_S).status_code == 503
    assert all_gone(family)


def test_a_killed_server_leaves_nothing_running_and_starts_again_where_it_was(start: Start) -> None:
    with held_port() as port:
        running = start("--port", port)
        with running.client() as client:
            session = opened(client)
            assert client.post(f"/sessions/{session}/run", json={"code": "x = 1"}).status_code == 200
        asked, _ = _in_thread(running)
        family = beneath(running.process.pid)
        assert len(family) > 3  # itself, and the processes of a session and of a program
        running.process.kill()
        assert all_gone(family)
        with pytest.raises(httpx2.TransportError):
            asked.result(HANG_S)
        again = start("--port", port)
    assert again.url == running.url == f"http://127.0.0.1:{port}"
    with again.client() as client:
        assert client.get("/readyz").status_code == 200
        assert client.post("/execute", json={"code": "print(6 * 7)"}).json()["stdout"] == "42\n"
        assert client.get(f"/sessions/{session}").status_code in (404, 410, 421)


def test_an_idle_websocket_does_not_hold_it_up(start: Start) -> None:
    running = start(*NO_END)
    with running.client() as client:
        session = opened(client)
        with listen(running, session, ticket(client, session)):
            with socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2]))):
                running.process.send_signal(signal.SIGTERM)
                assert running.process.wait(HANG_S) == 0


def test_connections_that_come_as_it_stops_do_not_hold_it_up(start: Start) -> None:
    running = start(*NO_END)
    address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
    with ExitStack() as held:
        running.process.send_signal(signal.SIGTERM)
        with suppress(ConnectionError):
            for _ in range(300):  # or until nobody listens
                held.enter_context(socket.create_connection(address))
                time.sleep(0.001)
        assert running.process.wait(HANG_S) == 0


def test_readiness_is_of_the_backend(start: Start) -> None:
    running = start(env={"SANDBOX_TYPE": "docker", "DOCKER_HOST": "unix:///nonexistent/docker.sock"})
    assert running.get("/healthz").status_code == 200
    found = running.get("/readyz")
    assert (found.status_code, found.json()["code"]) == (503, "unavailable")
    assert "nonexistent" not in found.text  # no path of this machine
    with running.client() as client:
        failed = client.post("/execute", json={"code": "1"})
    assert (failed.status_code, failed.json()["code"]) == (503, "unavailable")
    assert "nonexistent" not in failed.text
    assert "Traceback" not in running.log()


def test_many_clients_at_once_get_right_answers(server: Running) -> None:
    with server.client() as client:

        def ask(number: int) -> str:
            found = client.post("/execute", json={"code": f"print({number} * 2)"})
            assert found.status_code == 200, found.text
            return str(found.json()["stdout"])

        with ThreadPoolExecutor(20) as pool:
            assert list(pool.map(ask, range(40))) == [f"{number * 2}\n" for number in range(40)]


@pytest.fixture
def pair(start: Start) -> Running:
    return start("--workers", "2", "--grace", "2")


def _directories(prefix: str) -> list[str]:
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(prefix)]


def _workers(running: Running) -> list[int]:
    found = []
    for each in beneath(running.process.pid):
        try:
            with open(f"/proc/{each.pid}/cmdline", "rb") as file:
                if b"fumehood.server.workers" in file.read():
                    found.append(each.pid)
        except OSError:
            continue
    return found


def test_a_session_is_found_from_every_worker(pair: Running) -> None:
    assert len(_workers(pair)) == 2
    sessions = []
    for _ in range(6):  # each over a connection of its own, which either may take
        with pair.client() as client:
            sessions.append(opened(client))
    for number, session in enumerate(sessions):
        with pair.client() as client:
            kept = client.post("/execute", json={"session_id": session, "code": f"x = {number}"})
            assert kept.status_code == 200, kept.text
        with pair.client() as client:
            body = {"code": "print(x)"}
            assert client.post(f"/sessions/{session}/run", json=body).json()["stdout"] == f"{number}\n"
            opens = ticket(client, session)
        with listen(pair, session, opens) as events:
            with pair.client() as client:
                streamed = {"Accept": "application/x-ndjson"}
                last = client.post(f"/sessions/{session}/run", json=body, headers=streamed).text.splitlines()[-1]
                assert json.loads(last)["stdout"] == f"{number}\n"
            assert json.loads(events.recv(timeout=HANG_S))["type"] == "started"
    with pair.client() as client:
        missing = client.get("/sessions/s_elsewhere_0123456789012345678901")
        assert (missing.status_code, missing.json()["instance"]) == (421, "elsewhere")
        assert client.get("/sessions/s_..%2f..%2fetc_0123456789012345678901").status_code in (404, 422)


def test_a_worker_that_dies_is_replaced_and_all_die_with_the_first_process(pair: Running) -> None:
    with pair.client() as client:
        session = opened(client)
    before = _workers(pair)
    os.kill(before[0], signal.SIGKILL)
    assert wait_until(lambda: len(set(_workers(pair)) - {before[0]}) == 2)
    assert wait_until(lambda: "worker_ended" in pair.log())
    statuses = set()
    for _ in range(8):
        with pair.client() as client:
            statuses.add(client.get(f"/sessions/{session}").status_code)
            assert client.post("/execute", json={"code": "print(1)"}).status_code == 200
    assert statuses <= {200, 404, 410, 421}
    assert len(statuses) == 1
    family, ours = beneath(pair.process.pid), f"fumehood-{pair.process.pid}-"
    assert _directories(ours)
    pair.process.kill()
    assert all_gone(family)
    assert not _directories(ours)


def test_workers_that_stop_let_what_runs_end_and_tell_those_who_come(start: Start) -> None:
    pair = start("--workers", "2", *NO_END)
    with pair.client() as client:
        with client.stream("POST", "/execute", json=LASTING, headers={"Accept": "application/x-ndjson"}) as stream:
            lines = stream.iter_lines()
            assert any("here" in line for line in lines)
            pair.process.send_signal(signal.SIGTERM)
            assert wait_until(lambda: _is_stopping(pair))
            let_go(waiting(pair.process.pid))
            last = json.loads(list(lines)[-1])
    assert (last["type"], last["stdout"]) == ("result", "here\ndone\n")
    assert pair.process.wait(HANG_S) == 0


def test_sigterm_stops_all_workers(pair: Running) -> None:
    family = beneath(pair.process.pid)
    threads = [threading.Thread(target=pair.get, args=("/healthz",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pair.process.send_signal(signal.SIGTERM)
    assert pair.process.wait(HANG_S) == 0
    assert all_gone(family)
    assert TOKENS["alice"] not in pair.log()


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_reads_the_tokens_again_and_nothing_ends(start: Start, workers: int) -> None:
    running = start("--workers", str(workers))

    def reloads(tokens: str) -> int:
        return sum(line["event"] == "reloaded" and line["tokens"] == tokens for line in running.lines())

    running.process.send_signal(signal.SIGHUP)  # the file is as it was
    assert wait_until(lambda: reloads("read") == workers)
    running.give("no token in here, and no entry")
    running.process.send_signal(signal.SIGHUP)
    assert wait_until(lambda: reloads("kept") == workers)
    new = running.token_file.with_suffix(".new")
    os.mkfifo(new)  # whoever opens it waits for somebody who writes
    new.replace(running.token_file)
    running.process.send_signal(signal.SIGHUP)
    assert wait_until(lambda: reloads("kept") == 2 * workers)
    with running.client() as client:
        assert client.post("/execute", json={"code": "print(1)"}).json()["stdout"] == "1\n"
    assert running.stop() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_that_was_ignored_stays_ignored(start: Start, workers: int) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup leaves it to what it starts
    try:
        running = start("--workers", str(workers))
    finally:
        signal.signal(signal.SIGHUP, before)
    running.process.send_signal(signal.SIGHUP)
    assert running.get("/healthz").status_code == 200
    assert running.stop() == 0
    assert "reload" not in running.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("workers", [1, 2])
def test_signals_that_come_until_the_end_change_nothing(start: Start, workers: int, number: int) -> None:
    running = start("--workers", str(workers))
    running.process.send_signal(signal.SIGTERM)
    while running.process.poll() is None:
        running.process.send_signal(number)
        time.sleep(0.001)
    assert running.process.wait(HANG_S) == 0


def test_a_hangup_before_it_serves_ends_nothing(tmp_path: Path) -> None:
    """From when the command has begun; before that it is the interpreter's."""
    code = """
import os, signal, sys
from fumehood.cli import main, serve
serve._hold_standard_streams = lambda: os.kill(os.getpid(), signal.SIGHUP)
sys.exit(main.main(["serve", "--options-file", "none"]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=HANG_S)
    assert (done.returncode, b"does not exist" in done.stderr) == (78, True), done


@pytest.mark.parametrize("workers", [1, 2])
def test_closed_standard_streams_are_no_others(tmp_path: Path, workers: int) -> None:
    command = [sys.executable, str(PATIENT), "fumehood", "serve", "--port", "0", "--workers", str(workers)]
    closed = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", *command]
    with subprocess.Popen(closed, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1].partition("/#")[0]
        assert httpx2.get(f"{url}/healthz", timeout=HANG_S).status_code == 200
        served = [process.pid, *(each.pid for each in beneath(process.pid))]
        streams = {os.readlink(f"/proc/{pid}/fd/{fd}") for pid in served[:1] for fd in (0, 2)}
        assert streams == {os.devnull}
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path, workers: int) -> None:
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writes, b"x" * 4096)  # full before it starts
    os.set_blocking(writes, True)
    command = [sys.executable, str(PATIENT), "fumehood", "serve", "--port", "0", "--workers", str(workers)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    process = subprocess.Popen(command, cwd=tmp_path, env=kept, stdout=subprocess.PIPE, stderr=writes, text=True)
    os.close(writes)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1].partition("/#")[0]
        with httpx2.Client(base_url=url, timeout=HANG_S) as client:
            for _ in range(50):
                assert client.get("/info").status_code == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        os.close(reads)


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_the_line_of_a_request_names_what_it_ran(pair: Running, accept: str) -> None:
    ran: set[str] = set()
    with pair.client() as client:
        client.headers["Accept"] = accept

        def ask(path: str, **body: Any) -> None:
            said = client.post(path, json=body)
            ran.add(json.loads(said.text.splitlines()[-1])["execution_id"])

        session = client.post("/sessions", json={}).json()["session_id"]
        for _ in range(3):
            ask("/execute", code="print(1)")
            ask("/execute", code="1 / 0")
            ask("/execute", command=["ls"])
            ask("/execute", code="1", session_id=session)
            ask(f"/sessions/{session}/run", code="1")
            ask(f"/sessions/{session}/exec", command=["ls"])
        assert client.post("/execute", json={"code": 1}).status_code == 422
    assert len(ran) == 18

    def told() -> list[str]:
        return [line["execution_id"] for line in pair.lines() if line.get("execution_id") in ran]

    assert wait_until(lambda: sorted(told()) == sorted(ran))


def test_every_line_says_who_wrote_it_and_the_first_what_was_started(start: Start) -> None:
    running = start("--workers", "2", "--instance", "two")
    assert running.stop() == 0
    lines = running.lines()
    started = {line["worker"]: line for line in lines if line["event"] == "started"}
    assert started.keys() == {"two-0", "two-1"}
    assert len({line["pid"] for line in started.values()}) == 2
    assert all(line["version"] and line["address"] in running.url for line in started.values())
    assert all(line["pid"] and line["worker"] and line["level"] for line in lines)
