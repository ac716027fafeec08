"""Where the server is and what opens it: what must be said, and what is never shown."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fumehood import ConfigurationError, get_sandbox
from fumehood.cli.main import main
from fumehood.config import Settings, load
from running import TOKENS, Running

TOKEN = "hush-hush-0123456789"
Client = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("missing", [{"remote_url": None}, {"remote_token": None}])
def test_what_is_missing_is_named(client: Client, missing: dict[str, None]) -> None:
    with pytest.raises(ConfigurationError, match=f"SANDBOX_{next(iter(missing)).upper()}"):
        get_sandbox(**{**client("http://127.0.0.1:1"), **missing})


def test_one_of_token_and_token_file(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="one of SANDBOX_REMOTE_TOKEN and"):
        get_sandbox(**client("http://127.0.0.1:1", remote_token_file="x"))


@pytest.mark.parametrize("url", ["http://example.com", "http://10.0.0.1:80", "http://localhost.example.com:8080"])
def test_a_token_is_not_sent_in_clear_to_another_machine(client: Client, url: str) -> None:
    with pytest.raises(ConfigurationError, match="SANDBOX_REMOTE_CLEARTEXT"):
        get_sandbox(**client(url))
    get_sandbox(**client(url, remote_cleartext=True)).close()
    get_sandbox(**client(url.replace("http:", "https:"))).close()


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/", "http://localhost:8080", "http://[::1]:8080/below"])
def test_this_machine_may_be_asked_in_clear(client: Client, url: str) -> None:
    get_sandbox(**client(url)).close()


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://h", "h:80", "http://", "http://h:x", f"http://{TOKEN}@h", f"http://u:{TOKEN}@h"),
        *(f"http://127.0.0.1:8080/#token={TOKEN}", f"http://127.0.0.1/?token={TOKEN}", "http://h\nh", 5),
    ],
)
def test_a_url_that_is_none_is_refused_and_not_shown(client: Client, url: Any) -> None:
    with pytest.raises(ConfigurationError, match="remote_url") as caught:
        get_sandbox(**client(url))
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("token", [f"{TOKEN} and more", f"{TOKEN}\n{TOKEN}", f"{TOKEN}ö", 5, b"x"])
def test_a_token_that_is_none_is_refused_and_not_shown(client: Client, token: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"remote_token .*printable ASCII") as caught:
        get_sandbox(**client("http://127.0.0.1:1", remote_token=token))
    assert "hush" not in str(caught.value)


def test_no_one_is_shown_the_token(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SANDBOX_REMOTE_TOKEN", TOKEN)
    for arguments in (["config", "show"], ["config", "show", "--origin"], ["config", "show", "--json"]):
        assert main(arguments) == 0
    settings = load().settings
    shown = capsys.readouterr().out + repr(settings) + str(settings) + f"{settings.remote_token}"
    assert "SANDBOX_REMOTE_TOKEN" in shown
    assert "hush" not in shown
    assert settings.remote_token is not None
    assert settings.remote_token.reveal() == TOKEN


def test_settings_with_a_token_can_be_compared_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_REMOTE_TOKEN", TOKEN)
    settings: Settings = load().settings
    assert {settings: 1}[load().settings] == 1
    assert copy.copy(settings) == settings
    assert load({"remote_token": settings.remote_token}).settings == settings
    assert settings != load({"remote_token": "another"}).settings


def test_a_token_file_is_read_anew(server: Running, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("wrong-token-0123456789\n", encoding="utf-8")
    with get_sandbox(**client(server.url, remote_token_file=file) | {"remote_token": None}) as sandbox:
        with pytest.raises(ConfigurationError, match="refused the token"):
            sandbox.execute("1")
        file.write_text(f"{TOKENS['bob']}\n", encoding="utf-8")
        assert sandbox.execute("print(1)").stdout == "1\n"
        file.write_text(json.dumps({"token": TOKEN, "name": "x"}), encoding="utf-8")
        with pytest.raises(ConfigurationError, match="must hold the token and nothing else") as caught:
            sandbox.execute("1")
        assert "hush" not in str(caught.value)
        file.unlink()
        with pytest.raises(ConfigurationError, match=r"cannot be read: No such file"):
            sandbox.execute("1")
