"""`fumehood serve`: what it prints, what it refuses to start with, and where the token is not to be found."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from processes import beneath

from fumehood import IsolationUnavailable, get_sandbox
from fumehood.cli.main import main
from fumehood.errors import BadArgument
from fumehood.server.listening import listen
from fumehood.server.options import ServerOptions
from running import PATIENT, TOKENS, Running
from support import HANG_S, wait_until

Start = Callable[..., Running]
SERVE = [sys.executable, str(PATIENT), "fumehood", "serve", "--port", "0"]


def _refused(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["serve", "--port", "0", *words])
    out, err = capfd.readouterr()
    assert out == ""
    return code, err


def test_a_missing_extra_prints_the_line_to_type(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    code, err = _refused(capfd)
    assert (code, "pip install 'fumehood[server]'" in err) == (2, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "sandbox.example"])
def test_not_loopback_it_wants_a_token_that_is_given(host: str, capfd: Any) -> None:
    code, err = _refused(capfd, "--host", host)
    assert (code, "FUMEHOOD_TOKEN" in err) == (2, True)


def test_not_loopback_it_wants_level_sealed(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("FUMEHOOD_TOKEN", "given-token-0123456789")
    code, err = _refused(capfd, "--host", "0.0.0.0", "--isolation", "process")
    assert (code, "--allow-weak" in err, "level process" in err) == (78, True, True)


def test_not_loopback_every_call_wants_level_sealed(start: Start) -> None:
    """Also when this host gives less some day."""
    try:
        get_sandbox(require="sealed", store_code="never").check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")
    running = start("--host", "0.0.0.0", "--allow-host", "*")
    running.url = f"http://127.0.0.1:{running.url.rpartition(':')[2]}"
    with running.client("alice") as client:
        assert client.get("/info").json()["policy"]["require"] == "sealed"


def test_not_loopback_with_the_flag_it_starts_and_addresses_are_its_hosts(start: Start) -> None:
    running = start("--host", "0.0.0.0", "--isolation", "process", "--allow-weak", "--allow-host", "sandbox.example")
    url = f"http://127.0.0.1:{running.url.rpartition(':')[2]}"
    hosts = {"127.0.0.1:99": 200, "10.1.2.3": 200, "[::1]:8080": 200, "localhost": 200, "sandbox.example:1": 200}
    for host, status in {**hosts, "evil.example": 403, "sandbox.example.evil.example": 403}.items():
        found = httpx2.get(f"{url}/healthz", headers={"Host": host}, timeout=HANG_S)
        assert found.status_code == status, host


def _descriptors(pid: int) -> set[str]:
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def test_it_listens_on_loopback_alone(server: Running) -> None:
    inodes = _descriptors(server.process.pid)
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text("utf-8").splitlines()[1:]
    ]
    listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
    assert listening == [f"0100007F:{int(server.url.rpartition(':')[2]):04X}"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--port", "70000"), "'70000' is not a whole number from 0 to 65535"),
        (("--port", "x"), "not a whole number"),
        (("--workers", "0"), "'0' is not a whole number from 1 up"),
        (("--grace", "0"), "'0' is not a number of seconds greater than 0"),
        (("--client-timeout", "nan"), "seconds greater than 0"),
        (("--instance", "a/b"), "letters, digits"),
        (("--allow-host", "https://sandbox.example/"), "NAME or NAME:PORT"),
        (("--host", "127.0.0.1", "--max-running", "0"), "from 1 up"),
        (("--backend", "nope"), "nope"),
    ],
)
def test_a_wrong_option_is_told(words: tuple[str, ...], told: str, capfd: Any) -> None:
    code, err = _refused(capfd, *words)
    assert (code, told in err) == (2, True), err


def test_a_backend_that_is_not_set_up_is_told_before_anybody_comes(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.delenv("SANDBOX_REMOTE_URL", raising=False)
    code, err = _refused(capfd, "--backend", "remote")
    assert (code, "SANDBOX_REMOTE_URL" in err) == (78, True), err


def test_a_port_that_is_taken_is_told(server: Running, capfd: Any) -> None:
    code, err = _refused(capfd, "--port", server.url.rpartition(":")[2])
    assert (code, "try another --port" in err) == (2, True)


@pytest.mark.parametrize("host", ["192.0.2.1", "::1%none"])
def test_an_address_that_is_not_of_this_machine_is_told(host: str) -> None:
    with pytest.raises(BadArgument, match=r"[a-z)]; give --host an address of this machine, or its name$"):
        with listen(ServerOptions(host=host, port=0)):
            pass


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no token"),
        ("short", "16 or more"),
        ('{"name": "a"}', "one of token and sha256"),
        ('{"name": "a", "token": "0123456789abcdef", "quota": 1}', "unknown keys: quota"),
        ('{"name": "a", "token": "0123456789abcdef", "per_minute": "many"}', "whole numbers"),
        ('{"name": "a", "sha256": "abc"}', "64 hexadecimal"),
        (
            '{"name": "a", "token": "0123456789abcdef"}\n{"name": "a", "token": "0123456789abcdef"}',
            "a token that is there twice",
        ),
        ("a: [", "neither YAML nor JSON"),
    ],
)
def test_a_token_file_that_is_wrong_is_told(text: str, told: str, tmp_path: Path, capfd: Any) -> None:
    file = tmp_path / "tokens"
    file.write_text(text, encoding="utf-8")
    code, err = _refused(capfd, "--token-file", str(file))
    assert (code, told in err) == (78, True), err
    assert "0123456789abcde" not in err


def test_a_token_is_made_and_printed_once(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(SERVE, cwd=tmp_path, env=kept, stdout=subprocess.PIPE, stderr=log, encoding="utf-8")
    assert process.stdout is not None
    try:
        found = re.fullmatch(
            r"fumehood serves at (http://127\.0\.0\.1:\d+)/#token=(\S{43})\n", process.stdout.readline()
        )
        assert found
        url, token = found.groups()
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx2.get(f"{url}/openapi.json", headers=headers, timeout=HANG_S).status_code == 200
        code = "import os; print(sorted(os.environ)); print(open('/proc/self/environ').read())"
        ran = httpx2.post(f"{url}/execute", headers=headers, json={"code": code}, timeout=HANG_S).json()
        assert ran["exit_code"] in (0, 1)
        assert token not in ran["stdout"]
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        process.stdout.close()
        assert process.wait(HANG_S) == 0
    assert rest == ""
    assert token not in (tmp_path / "log").read_text("utf-8")


def test_a_given_token_is_printed_nowhere_and_reaches_no_program(start: Start) -> None:
    token = f"given-token-{secrets.token_hex(8)}"
    running = start("--workers", "2", env={"FUMEHOOD_TOKEN": token})
    with running.client(token) as client:
        code = "import os; print(dict(os.environ)); print(*os.listdir('/proc'))"
        assert token not in client.post("/execute", json={"code": code}).text
    family = {each.pid for each in beneath(running.process.pid)}
    assert len(family) > 2
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert token.encode() not in command
            assert pid not in family or TOKENS["alice"].encode() not in command  # others may well run curl with it
    assert token not in running.log()


def test_tokens_rotate_without_a_restart(start: Start) -> None:
    running = start()

    def status(token: str) -> int:
        return running.get("/info", headers={"Authorization": f"Bearer {token}"}).status_code

    assert (status(TOKENS["alice"]), status("carol-token-0123456789")) == (200, 401)

    def in_force(value: float) -> bool:
        return running.number("fumehood_token_file_ok") == value

    assert in_force(1.0)
    running.give('{"name": "carol", "carol-token-0123456789": "token", "to')  # not whole: what was in force stays
    assert wait_until(lambda: in_force(0.0))
    running.give('{"name": "carol", "carol-token-0123456789": "token"}')
    assert wait_until(lambda: status(TOKENS["alice"]) == 200 and running.log().count('"tokens_kept"') == 2)
    kept = [line for line in running.lines() if line["event"] == "tokens_kept"]
    assert [line["level"] for line in kept] == ["warning", "warning"]
    assert "unknown keys" in kept[1]["message"]
    assert "carol-token" not in running.log()
    assert status(TOKENS["alice"]) == 200
    running.give(json.dumps([{"name": "carol", "token": "carol-token-0123456789"}]))
    assert wait_until(lambda: status("carol-token-0123456789") == 200)
    assert status(TOKENS["alice"]) == 401
    assert wait_until(lambda: '"tokens_read"' in running.log())
