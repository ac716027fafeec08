"""Options of `fumehood serve` in a file, and what a reload changes while it runs."""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import LASTING, let_go, waiting

from fumehood.cli.main import main
from fumehood.cli.serve_options import OPTIONS, Source, add_options
from fumehood.errors import ConfigurationError
from fumehood.server.options import RELOADED, ServerOptions
from running import Running
from support import HANG_S, wait_until

Start = Callable[..., Running]
# Each option, as a file has it, and what it makes of the server's options.
WRITTEN: dict[str, tuple[object, dict[str, object]]] = {
    "host": ("::1", {"host": "::1"}),
    "port": (0, {"port": 0}),
    "unix-socket": ("/run/s.sock", {"unix_socket": "/run/s.sock"}),
    "socket-mode": ("660", {"socket_mode": 0o660}),
    "tls-cert": ("c.pem", {"tls_cert": "c.pem"}),
    "tls-key": ("k.pem", {"tls_key": "k.pem"}),
    "token-file": ("tokens", {"token_file": "tokens"}),
    "allow-host": (["a.example", "b.example:1"], {"allowed_hosts": ("a.example", "b.example:1")}),
    "allow-weak": (True, {"allow_weak": True}),
    "workers": (3, {"workers": 3}),
    "max-running": (5, {"max_running": 5}),
    "max-queue": (0, {"max_queue": 0}),
    "max-sessions": (7, {"max_sessions": 7}),
    "max-connections": (9, {"max_connections": 9}),
    "max-unauthenticated": (11, {"max_unauthenticated": 11}),
    "trusted-proxy": (["unix", "10.0.0.0/8"], {"trusted_proxies": ("unix", "10.0.0.0/8")}),
    "max-body-memory": (64, {"max_bodies_bytes": 64 << 20}),
    "client-timeout": (0.5, dict.fromkeys(("header_timeout_s", "body_timeout_s", "write_timeout_s"), 0.5)),
    "grace": (1, {"grace_s": 1.0}),
    "instance": ("pod-1", {"instance": "pod-1"}),
}
BESIDE = {"tls-cert": "tls-key: k\n", "tls-key": "tls-cert: c\n", "socket-mode": "unix-socket: s\n"}
BESIDE["trusted-proxy"] = BESIDE["socket-mode"]


def _source(file: Path, *words: str) -> Source:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return Source(parser.parse_args(["--options-file", str(file), *words]), "a-token")


def _read(file: Path, text: str, *words: str) -> ServerOptions:
    file.write_text(text, encoding="utf-8")
    return _source(file, *words).read()


def test_each_option_may_be_in_the_file(tmp_path: Path) -> None:
    assert WRITTEN.keys() == {option.name for option in OPTIONS}
    for name, (value, expected) in WRITTEN.items():
        read = _read(tmp_path / "f", f"{name}: {json.dumps(value)}\n{BESIDE.get(name, '')}")
        plain = (
            _read(tmp_path / "f", BESIDE.get(name, ""))
            if "unix-socket" in BESIDE.get(name, "")
            else ServerOptions(token="a-token")
        )
        changed = {field for field in ServerOptions._fields if getattr(read, field) != getattr(plain, field)}
        assert {field: getattr(read, field) for field in expected} == expected
        assert changed - {"tls_cert", "tls_key"} <= expected.keys(), name


def test_what_is_typed_replaces_what_the_file_says(tmp_path: Path) -> None:
    text = "port: 1\nmax-running: 2\nallow-host: [a.example]\n"
    read = _read(tmp_path / "f", text, "--port", "3", "--allow-host", "b.example", "--allow-host", "c.example")
    assert (read.port, read.max_running, read.allowed_hosts) == (3, 2, ("b.example", "c.example"))
    assert read.grace_s == ServerOptions().grace_s
    assert _read(tmp_path / "f", "allow-host: a.example\n").allowed_hosts == ("a.example",)
    assert _read(tmp_path / "f", "") == ServerOptions(token="a-token")
    assert not _read(tmp_path / "f", "allow-weak: false").allow_weak


def test_a_value_is_what_is_written(tmp_path: Path) -> None:
    """YAML would take these for other numbers."""
    for written, mode in (("660", 0o660), ("0660", 0o660), ("'0o640'", 0o640)):
        assert _read(tmp_path / "f", f"unix-socket: s\nsocket-mode: {written}").socket_mode == mode
    for name in ("0123", "1e3", "12.10", "yes"):
        assert _read(tmp_path / "f", f"instance: {name}").instance == name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot: 1", "'prot' is no option of fumehood serve; did you mean 'port'?"),
        ("max_running: 1", "did you mean 'max-running'?"),
        ("--port: 1", "did you mean 'port'?"),
        ("zzz: 1", "see `fumehood serve --help`"),
        ("isolation: sealed", "it comes from SANDBOX_ISOLATION"),
        ("backend: docker", "it comes from SANDBOX_TYPE"),
        ("options-file: x", "'options-file' is no option"),
        ("port: many", "port: 'many' is not a whole number from 0 to 65535"),
        ("port: 1.5", "port: '1.5' is not a whole number"),
        ("port: true", "port: 'true' is not a whole number"),
        ("port: {a: 1}", "port: its value is one text or number"),
        ("token-file:", "token-file: it has no value: give it one, or take the line out"),
        ("allow-host: [a, '']", "allow-host: it has no value"),
        ("max-queue: 1:30", "max-queue: '1:30' is not a whole number"),
        (f"port: '{'9' * 5000}'", "is not a whole number"),
        ("port: [1, 2]", "port: it has one value"),
        ("allow-weak: 1", "allow-weak: it is true or false"),
        ("allow-host: 'http://a'", "NAME or NAME:PORT"),
        ("allow-host: [a, [b]]", "nested too deeply"),
        ("allow-host: a.example:99999", "NAME or NAME:PORT"),
        ("trusted-proxy: 10.0.0.1/8", "'10.0.0.1/8' is an address within a network: write 10.0.0.0/8"),
        ("trusted-proxy: example.org", "is no address, no network"),
        ("trusted-proxy: unix", "--trusted-proxy unix is for --unix-socket, which is missing"),
        ("unix-socket: s\nsocket-mode: 8", "'8' is not a mode of three octal digits"),
        ("grace: .inf", "seconds greater than 0"),
        ("instance: a/b", "letters, digits"),
        ('instance: "a\\0b"', "letters, digits"),
        ('host: "127.0.0.1\\0x"', r"host: '127.0.0.1\x00x' is neither an address of this machine"),
        ('host: "::1%\\0"', "host: "),
        ("host: ''", "host: it has no value"),
        ('allow-host: "a\\0"', "NAME or NAME:PORT"),
        ('trusted-proxy: "10.0.0.1\\0"', "is no address, no network"),
        ('unix-socket: "/tmp/a\\0x"', r"unix-socket: '/tmp/a\x00x' is not a path"),
        ('token-file: "/tmp/a\\nx"', r"token-file: '/tmp/a\nx' is not a path"),
        ('tls-cert: "/tmp/\\e[2J"\ntls-key: k', "tls-cert: "),
        ("tls-cert: c", "--tls-key is missing"),
        ("unix-socket: s\nport: 1", "--port is for a port"),
        ("port: 1\nport: 2", "sets 'port' twice"),
        ("- port", "`setting: value` lines"),
        ("port: &a 1", "anchors or aliases"),
    ],
)
def test_a_file_that_is_wrong_is_told(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    with pytest.raises(ConfigurationError) as caught:
        _read(file, text)
    assert told in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("written", "host"),
    [
        *((host, host) for host in ("127.0.0.1", "::1", "0.0.0.0", "fe80::1%eth0", "localhost", "a-b.example", "x_y")),
        *(("[::1]", "::1"), ("[::ffff:127.0.0.1]", "::ffff:127.0.0.1")),
    ],
)
def test_a_host_is_an_address_or_a_name(tmp_path: Path, written: str, host: str) -> None:
    assert _read(tmp_path / "f", f"host: '{written}'").host == host
    assert _read(tmp_path / "f", "", "--host", written).host == host


def test_an_address_with_brackets_is_shown_with_one_pair(tmp_path: Path) -> None:
    assert _read(tmp_path / "f", "", "--host", "[::1]", "--port", "1").address == "http://[::1]:1"


NO_HOSTS = [
    *("", " ", "a..b", ".", "-a", "a" * 64, "a." * 130, "http://127.0.0.1", "127.0.0.1:8080", "127.0.0.1 ", "a b"),
    *(
        "[::1",
        "::1]",
        "[[::1]]",
        "[]",
        "[127.0.0.1]",
        "[::1]:80",
        ":::",
        "::1%",
        "::1%\n",
        "a\n",
        "\xfc.example",
        "\ud800",
    ),
]


@pytest.mark.parametrize("host", NO_HOSTS)
def test_what_is_no_host_is_told_what_one_is(tmp_path: Path, host: str, capfd: Any) -> None:
    with pytest.raises(SystemExit):
        _source(tmp_path / "f", f"--host={host}")
    err = capfd.readouterr().err
    assert "--host: " in err
    assert "an address of this machine, such as 127.0.0.1 or ::1" in err


@pytest.mark.parametrize("name", [*(option.name for option in OPTIONS if option.parse), "options-file"])
def test_an_option_without_a_value_is_told(tmp_path: Path, name: str, capfd: Any) -> None:
    """As of a shell's variable that is not set."""
    (tmp_path / "f").touch()
    with pytest.raises((SystemExit, ConfigurationError)) as caught:
        _source(tmp_path / "f", f"--{name}=").read()
    assert name in capfd.readouterr().err + str(caught.value)


@pytest.mark.parametrize("name", [option.name for option in OPTIONS if option.metavar in ("F", "PATH")])
def test_a_path_may_have_any_bytes_but_what_no_terminal_should_show(tmp_path: Path, name: str, capfd: Any) -> None:
    for path in map(os.fsdecode, (b"a\xff", b"\xc3\xbc b")):
        args = _source(tmp_path / "f", f"--{name}", path)
        assert args._given[name.replace("-", "_")] == path
    for path in ("a\0", "a\n", "\x1b[2J", "\ud800", "\x9b"):
        with pytest.raises(SystemExit):
            _source(tmp_path / "f", f"--{name}", path)
        assert "is not a path" in capfd.readouterr().err


def test_a_file_that_is_not_there_is_told(tmp_path: Path, capfd: Any) -> None:
    assert main(["serve", "--options-file", str(tmp_path / "none")]) == 78
    assert "does not exist" in capfd.readouterr().err


def test_a_file_in_a_directory_that_may_not_be_entered_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    source = _source(tmp_path / "f")
    with monkeypatch.context() as patched:  # root may enter any
        patched.setattr(os, "open", refuse)
        patched.setattr(os, "lstat", refuse)
        with pytest.raises(ConfigurationError, match="f cannot be read: Permission denied"):
            source.read()


def test_what_a_reload_changes_is_part_of_the_options() -> None:
    assert set(RELOADED) <= set(ServerOptions._fields)
    assert {"host", "port", "unix_socket", "workers", "token", "token_file", "instance"}.isdisjoint(RELOADED)


# ---- a reload


def _options(directory: Path, text: str) -> Path:
    new, file = directory / "new", directory / "options.yaml"
    new.write_text(text, encoding="utf-8")
    new.replace(file)
    return file


def _reload(server: Running, outcome: str) -> dict[str, Any]:
    """The line of whoever read the files."""

    def lines() -> list[dict[str, Any]]:
        return [line for line in server.lines() if "options" in line and line["event"].startswith("reload")]

    before = len(lines())
    server.process.send_signal(signal.SIGHUP)
    assert wait_until(lambda: len(lines()) == before + 1)
    assert lines()[-1]["options"] == outcome, lines()[-1]
    return lines()[-1]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reload_takes_what_can_change_and_names_the_rest(start: Start, tmp_path: Path, workers: int) -> None:
    file = _options(tmp_path, f"port: 0\nworkers: {workers}\nmax-running: 2\n")
    server = start("--options-file", str(file), "--max-queue", "5")

    def capacity(name: str, value: int) -> bool:
        return server.number(f"fumehood_max_{name}") == value * workers

    assert capacity("running", 2)
    _options(tmp_path, f"port: 0\nworkers: {workers}\nmax-running: 3\nmax-queue: 1\nallow-host: sandbox.example\n")
    assert "need_restart" not in _reload(server, "read")
    assert wait_until(lambda: capacity("running", 3))
    assert capacity("queue", 5)  # what was typed goes before the file
    elsewhere = {"Host": "sandbox.example"}
    assert {server.get("/healthz", headers=elsewhere).status_code for _ in range(4)} == {200}

    _options(tmp_path, "port: 1\nworkers: 7\nmax-running: 4\n")
    line = _reload(server, "read")
    assert (line["need_restart"], line["level"]) == (["port", "workers"], "warning")
    assert wait_until(lambda: capacity("running", 4))
    assert wait_until(lambda: {server.get("/healthz", headers=elsewhere).status_code for _ in range(8)} == {403})

    _options(tmp_path, "max-running: none at all\n")
    line = _reload(server, "kept")
    assert ("max-running: 'none at all'" in line["message"], line["level"]) == (True, "warning")
    file.unlink()
    assert "does not exist" in _reload(server, "kept")["message"]
    assert capacity("running", 4)
    assert server.stop() == 0


def test_who_waits_gets_the_places_that_a_reload_adds(start: Start, tmp_path: Path) -> None:
    file = _options(tmp_path, "port: 0\nmax-running: 1\n")
    server = start("--options-file", str(file))
    replies: list[int] = []

    def last() -> None:
        with server.client() as client:
            replies.append(client.post("/execute", json=LASTING).status_code)

    asked = [threading.Thread(target=last) for _ in range(2)]
    try:
        for each in asked:
            each.start()
        assert wait_until(lambda: (server.executions(), server.number("fumehood_queued")) == (1, 1))
        _options(tmp_path, "port: 0\nmax-running: 4\n")
        _reload(server, "read")
        assert wait_until(lambda: len(waiting(server.process.pid)) == 2)
        let_go(waiting(server.process.pid))
    finally:
        for each in asked:
            each.join(HANG_S)
    assert replies == [200, 200]


def test_a_worker_that_is_started_later_goes_by_what_is_in_force(start: Start, tmp_path: Path) -> None:
    file = _options(tmp_path, "port: 0\nworkers: 2\nmax-running: 2\n")
    server = start("--options-file", str(file))
    _options(tmp_path, "port: 0\nworkers: 2\nmax-running: 3\n")
    _reload(server, "read")
    assert wait_until(lambda: server.number("fumehood_max_running") == 6)
    server.give("no tokens in here")
    file.write_text("nothing: of use")
    os.kill(min(server.workers(2)), signal.SIGKILL)
    assert len(server.workers(3)) == 3
    assert wait_until(lambda: server.number("fumehood_max_running") == 6)
    with server.client() as client:
        assert {client.get("/info").status_code for _ in range(8)} == {200}


def test_workers_that_somebody_tells_to_hang_up_go_on(start: Start) -> None:
    server = start("--workers", "2")
    pids = server.workers(2)
    for pid in pids:
        os.kill(pid, signal.SIGHUP)
    server.process.send_signal(signal.SIGHUP)
    assert wait_until(lambda: sum(line["event"] == "reloaded" for line in server.lines()) == 2)
    assert server.stop() == 0
    assert server.workers(2) == pids
