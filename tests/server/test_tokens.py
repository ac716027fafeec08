"""Tokens and tickets by themselves."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra `server`")

from fumehood.server import tokens
from fumehood.server.tokens import Tickets, Token, Tokens

ALICE = Token("alice", b"a" * 32)
BOB = Token("bob", b"b" * 32)


@pytest.mark.parametrize(
    "text",
    [
        "a-token-alone-0123456789",
        '{"name": "default", "token": "a-token-alone-0123456789"}',
        '#\n{"name": "default", "token": "a-token-alone-0123456789"}\n\n{"name": "b", "token": "b-0123456789abcdef"}',
        '[{"name": "default", "token": "a-token-alone-0123456789", "per_minute": null}]',
        "- name: default\n  token: a-token-alone-0123456789\n",
        "name: default\ntoken: a-token-alone-0123456789\n",
        f'{{"name": "default", "sha256": "{hashlib.sha256(b"a-token-alone-0123456789").hexdigest()}"}}',
    ],
)
def test_a_token_file_may_be_written_in_several_ways(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text, encoding="utf-8")
    found = Tokens(file=str(tmp_path / "file")).find("a-token-alone-0123456789")
    assert found is not None
    assert found.name == "default"
    assert Tokens(file=str(tmp_path / "file")).find("a-token-alone-012345678") is None


@pytest.mark.parametrize(
    "token", ["-" * 20, "-starts-like-yaml-0123", "ends-like-a-key-0123456:", "?0123456789abcdef0123"]
)
def test_any_token_may_stand_alone_in_its_file(token: str, tmp_path: Path) -> None:
    """Of those we make, one in 64 begins with a dash."""
    (tmp_path / "file").write_text(f"{token}\n", encoding="utf-8")
    assert Tokens(file=str(tmp_path / "file")).find(token) is not None


def test_the_variable_and_the_file_are_both_in_force(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('{"name": "b", "token": "another-0123456789", "max_sessions": 2}', encoding="utf-8")
    both = Tokens("the-variable-0123456789", str(tmp_path / "file"))
    found = both.find("another-0123456789")
    assert found is not None
    assert found.max_sessions == 2
    assert both.find("the-variable-0123456789") is not None
    assert both.find("") is None


def test_a_made_token_has_256_bits() -> None:
    assert len({tokens.made() for _ in range(10)}) == 10
    assert len(tokens.made()) == 43


def test_a_ticket_opens_its_path_once() -> None:
    tickets = Tickets("here")
    ticket = tickets.make(ALICE, "/a")
    assert tickets.redeem(ticket, "/a") == ALICE
    assert tickets.redeem(ticket, "/a") is None
    wrong = tickets.make(ALICE, "/a")
    assert tickets.redeem(wrong, "/b") is None
    assert tickets.redeem(wrong, "/a") is None


def test_a_ticket_is_soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    tickets = Tickets("here")
    monkeypatch.setattr(tokens, "TICKET_S", 0.0)
    late = tickets.make(ALICE, "/a")
    monkeypatch.undo()
    assert tickets.redeem(late, "/a") is None
    assert tickets.redeem(tickets.make(ALICE, "/a"), "/a") == ALICE


def test_tickets_that_nobody_redeems_do_not_pile_up() -> None:
    tickets = Tickets("here")
    first, another = tickets.make(ALICE, "/a"), tickets.make(BOB, "/a")
    for _ in range(tokens.MAX_TICKETS):
        last = tickets.make(ALICE, "/a")
    assert tickets.redeem(first, "/a") is None
    assert tickets.redeem(another, "/a") == BOB
    assert tickets.redeem(last, "/a") == ALICE
