"""A server that is killed while a program of ours runs there: an error that says so, soon, and nothing is run twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fumehood import errors, get_sandbox, open_session
from fumehood.types import Output
from running import Running, held_port
from support import HANG_S, wait_until

Client = Callable[..., dict[str, Any]]
CODE = "print('up', flush=True)\nimport time; time.sleep(3600)"
LONG_S = 300  # what the programs are given: a call that ends within HANG_S has not waited for it


def one_shot(arguments: dict[str, Any], running: Running) -> None:
    with get_sandbox(**arguments) as sandbox:
        sandbox.execute("print(1)")
        _kill_in_mid_run(running, lambda: sandbox.execute(CODE, timeout=LONG_S))


def one_shot_stream(arguments: dict[str, Any], running: Running) -> None:
    async def read() -> None:
        with get_sandbox(**arguments) as sandbox:
            async with sandbox.stream(CODE, timeout=LONG_S) as stream:
                async for event in stream:
                    assert event == Output("stdout", b"up\n")
                    running.process.kill()

    asyncio.run(asyncio.wait_for(read(), HANG_S))


def session_run(arguments: dict[str, Any], running: Running) -> None:
    with open_session(start_retries=0, **arguments) as session:
        session.run("x = 1")
        _kill_in_mid_run(running, lambda: session.run(CODE, timeout=LONG_S))


def session_exec(arguments: dict[str, Any], running: Running) -> None:
    with open_session(start_retries=0, **arguments) as session:
        session.exec(["true"])
        _kill_in_mid_run(running, lambda: session.exec(["sleep", "3600"], timeout=LONG_S))


def session_stream(arguments: dict[str, Any], running: Running) -> None:
    with open_session(start_retries=0, **arguments) as session, session.stream(CODE, timeout=LONG_S) as stream:
        for event in stream:
            assert event == Output("stdout", b"up\n")
            running.process.kill()


WAYS = [one_shot, one_shot_stream, session_run, session_exec, session_stream]


@pytest.mark.parametrize("fallback", [None, "local"])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_an_error_and_nothing_runs_twice(
    start: Callable[..., Running],
    client: Client,
    tmp_path: Path,
    way: Callable[[dict[str, Any], Running], None],
    fallback: str | None,
) -> None:
    running = start()
    arguments = client(running.url, fallback=fallback) | {"store_code": "always", "artifacts_dir": tmp_path / "here"}
    with pytest.raises(errors.SandboxLost, match="went away") as caught:
        way(arguments, running)
    assert "token-0123456789" not in str(caught.value)
    records = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "here").rglob("*.json")]
    lost = [record for record in records if "sleep" in json.dumps(record)]
    assert len(lost) == 1
    assert "fallback" not in lost[0].get("meta", lost[0])


def _kill_in_mid_run(running: Running, call: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(call)
        assert wait_until(lambda: running.executions() == 1)
        running.process.kill()
        asked.result(HANG_S)


@pytest.mark.parametrize("network", [False, True])
def test_what_is_said_has_a_next_step(start: Callable[..., Running], client: Client, network: bool) -> None:
    running = start(env={"SANDBOX_NETWORK": "true"})
    with pytest.raises(errors.SandboxLost) as caught:
        one_shot_stream(client(running.url, network=network), running)  # its program has said something
    assert f"the server at {running.url} went away while the program ran" in str(caught.value)
    assert "fumehood serve" in str(caught.value)


def test_the_next_call_uses_the_fallback_or_says_that_there_is_no_server(
    start: Callable[..., Running], client: Client
) -> None:
    running = start()
    arguments = client(running.url)
    with get_sandbox(fallback="local", **arguments) as spared, open_session(start_retries=0, **arguments) as session:
        assert "fallback" not in spared.execute("print(1)").meta
        session.run("x = 1")
        running.process.kill()
        running.process.wait(HANG_S)
        assert spared.execute("print(1)").meta["fallback"]["from"] == "remote"
        with pytest.raises(errors.SandboxLost, match=r"variables are lost.*no server at .*connection refused"):
            session.run("x")
        with pytest.raises(errors.BackendUnavailable, match="no server at"):
            session.run("x")


CALLS: dict[str, Callable[[Any], object]] = {
    "run": lambda session: session.run("x"),
    "exec": lambda session: session.exec(["echo", "1"]),
    "files": lambda session: session.files(),
    "read": lambda session: session.read("/workspace/a"),
    "write": lambda session: session.write("/workspace/a", b"1"),
}


def test_a_session_ends_with_its_server_and_keeps_to_its_backend(start: Callable[..., Running], client: Client) -> None:
    running = start()
    with ExitStack() as opened:
        sessions = {
            name: opened.enter_context(open_session(**client(running.url, fallback="local", start_retries=0)))
            for name in CALLS
        }
        for session in sessions.values():
            session.write("/workspace/a", b"1")
        running.process.kill()
        running.process.wait(HANG_S)
        for name, session in sessions.items():
            with pytest.raises(errors.SandboxLost, match="variables are lost"):
                pytest.fail(f"{name}: {CALLS[name](session)}")
            with pytest.raises(errors.BackendUnavailable, match="no server at"):
                pytest.fail(f"run after {name}: {session.run('x')}")


@pytest.mark.parametrize("notices", [False, True])
def test_a_session_begins_anew_on_a_server_that_was_started_again(
    start: Callable[..., Running], client: Client, notices: bool
) -> None:
    with held_port() as port:
        running = start("--port", port)
        with open_session(start_retries=0, **client(running.url)) as session:
            _begins_anew(session, running, lambda: start("--port", port), notices)


def _begins_anew(session: Any, running: Running, start_again: Callable[[], object], notices: bool) -> None:
    session.run("x = 1")
    running.process.kill()
    running.process.wait(HANG_S)
    if notices:
        with pytest.raises(errors.SandboxLost, match="connection refused"):
            session.run("x")
    start_again()
    if not notices:
        with pytest.raises(errors.SandboxLost, match="started anew"):
            session.run("x")
    assert "NameError" in session.run("x").stderr


@pytest.mark.parametrize("fallback", [None, "local"])
def test_a_server_that_is_killed_behind_a_proxy(
    start: Callable[..., Running], before: Callable[..., Any], client: Client, fallback: str | None
) -> None:
    running = start()
    arguments = client(before(running.url).url, fallback=fallback)
    with pytest.raises(errors.SandboxLost, match="went away"):
        one_shot_stream(arguments, running)
    with get_sandbox(**arguments) as sandbox:
        if fallback is None:
            with pytest.raises(errors.BackendUnavailable, match="a proxy whose server is down"):
                sandbox.execute("print(1)")
        else:
            assert sandbox.execute("print(1)").meta["fallback"]["from"] == "remote"


@pytest.mark.parametrize("network", [False, True])
def test_a_proxy_may_have_passed_on_what_it_has_no_answer_to(
    start: Callable[..., Running], before: Callable[..., Any], client: Client, network: bool
) -> None:
    running = start(env={"SANDBOX_NETWORK": "true"})
    proxy = before(running.url)
    with get_sandbox(**client(proxy.url, fallback="local", network=network)) as sandbox:
        assert sandbox.execute("print(1)").stdout == "1\n"
        running.process.kill()
        running.process.wait(HANG_S)
        with pytest.raises(errors.SandboxLost, match="the program may have run"):
            sandbox.execute("print(1)")
        assert sandbox.execute("print(1)").meta["fallback"]["from"] == "remote"
    assert [each for each in proxy.seen if each.startswith("POST")] == ["POST /execute"] * 2


@pytest.mark.parametrize("fallback", [None, "local"])
@pytest.mark.parametrize(
    "said",
    [
        *(b"<html>", b"<html>\n", b"\n", b"[]\n", b'{"type": "output"}\n', b'{"type": "started", "receipt": {}}\n'),
        *(b'{"type": "result"}\n', b'{"type": "error", "error": {"code": "unavailable"}}\n', b"\xff\xfe\n", b""),
    ],
)
def test_an_answer_that_makes_no_sense(
    impostor: Callable[..., str], client: Client, said: bytes, fallback: str | None
) -> None:
    with get_sandbox(**client(impostor(said), fallback=fallback)) as sandbox:
        with pytest.raises(errors.SandboxLost, match=r"server|while the program ran"):
            sandbox.execute("print(1)")


def test_a_server_that_falls_silent(
    impostor: Callable[..., str], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fumehood.backends.remote.process.SILENCE_S", 1.0)
    url = impostor(b'{"type": "started", "receipt": {"level": "sealed"}}\n', stays=True)
    with get_sandbox(**client(url, network=True)) as sandbox:
        with pytest.raises(errors.SandboxLost, match="said nothing for 1 s while the program ran"):
            sandbox.execute("print(1)")
