"""What a hostile program may do to a terminal: nothing."""

from __future__ import annotations

import io
import json
import os
import pty

import pytest

from fumehood.cli import terminal
from fumehood.cli.terminal import Style, safe


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\x08\x08b", "a\\x08\\x08b"),
        ("\x7f\x00", "\\x7f\\x00"),
        ("\x9b31m", "\\x9b31m"),
        ("user\u202egpj.exe", "user\\u202egpj.exe"),
        ("\u2066x\u2069\u200f\u061c", "\\u2066x\\u2069\\u200f\\u061c"),
        ("\udc80\ud800", "\\udc80\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
    ],
)
def test_what_drives_a_terminal_is_spelled_out(hostile: str, shown: str) -> None:
    assert safe(hostile) == shown


def test_ordinary_text_is_untouched() -> None:
    text = "naïve 日本語 🧪 עברית\n\tindented █\n"
    assert safe(text) == text


def test_no_character_at_all_gets_a_control_code_through() -> None:
    shown = safe("".join(map(chr, range(0x3000))))
    assert all(char in "\n\t" or not (ord(char) < 32 or 0x7F <= ord(char) < 0xA0) for char in shown)


class _Stream(io.TextIOWrapper):
    """A stream that says whether it is a terminal."""

    def __init__(self, tty: bool, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    def written(self) -> bytes:
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue()


def test_only_a_terminal_gets_text_made_safe() -> None:
    screen, pipe = _Stream(True), _Stream(False)
    for stream in (screen, pipe):
        terminal.write(stream, "\x1b[31mred\r\n")
    assert screen.written() == b"\\x1b[31mred\n"
    assert pipe.written() == b"\x1b[31mred\r\n"


def test_bytes_that_were_not_text_come_out_as_they_went_in() -> None:
    pipe = _Stream(False)
    terminal.write(pipe, b"\xff\x80ok".decode("utf-8", "surrogateescape"))
    assert pipe.written() == b"\xff\x80ok"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_any_text_can_be_written_in_any_encoding(encoding: str) -> None:
    pipe = _Stream(False, encoding)
    terminal.write(pipe, "é€\ud800")
    assert pipe.written().endswith(b"\\ud800")


def test_a_closed_stdout_is_no_error() -> None:
    terminal.write(None, "text")
    terminal.silence(None)
    assert not Style.for_stream(None, {"TERM": "xterm"}).enabled


@pytest.mark.parametrize(
    ("tty", "environ", "coloured"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {}, False),
        (False, {"TERM": "xterm"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "0"}, False),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_only_where_they_belong(tty: bool, environ: dict[str, str], coloured: bool) -> None:
    assert Style.for_stream(_Stream(tty), environ).enabled is coloured


def test_a_style_makes_its_text_safe() -> None:
    assert Style(False)("\x1b[2J", "red") == "\\x1b[2J"
    assert Style(True)("\x1b[2J", "red") == "\x1b[31m\\x1b[2J\x1b[0m"


def test_json_holds_no_character_that_drives_a_terminal() -> None:
    hostile = "".join(map(chr, range(0x100))) + "\u202e\u2028\ud800\U000e0041"
    shown = terminal.as_json({hostile: [hostile]})
    assert shown.replace("\n", "").isprintable()
    assert json.loads(shown) == {hostile: [hostile]}


def test_a_real_terminal_is_known_as_one() -> None:
    leader, follower = pty.openpty()
    try:
        with os.fdopen(follower, "w") as stream:
            assert terminal.is_terminal(stream)
        assert not terminal.is_terminal(stream)  # closed
    finally:
        os.close(leader)
