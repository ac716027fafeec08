"""What is typed, put together into whole statements, and the history of it."""

from __future__ import annotations

import codeop
import os
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

from ..config import user_directory
from ..errors import BadArgument
from . import terminal

PROMPT, MORE = ">>> ", "... "
HISTORY_LINES = 1000
MAX_CHARS = 1024 * 1024  # of one statement; what is longer is run as it is
_CONTINUES = ("else", "elif", "except", "finally", "case")


class Statements:
    """Takes lines, gives statements. A block ends with an empty line or with a line that is not its part."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def between(self) -> bool:
        """Whether a statement may begin here."""
        return not self._lines or _complete("\n".join([*self._lines, ""])) is True

    def feed(self, line: str) -> list[str]:
        """The statements that this line completes."""
        done = []
        word = line.split(maxsplit=1)[0].rstrip(":") if line.strip() else ""
        begins = word and not line[0].isspace() and word not in _CONTINUES and not line.startswith(("#", ")", "]", "}"))
        if self._lines and begins and self.between():
            done.append(self.rest())
        if self._lines or line.strip():
            self._lines.append(line)
            if _complete("\n".join(self._lines)) is not False:
                done.append(self.rest())
        return done

    def rest(self) -> str:
        """What there is, whole or not."""
        source, self._lines = "\n".join(self._lines), []
        return source

    def drop(self) -> None:
        self._lines = []

    def __bool__(self) -> bool:
        return bool(self._lines)


def _complete(source: str) -> bool | None:
    """None: it never will be; let Python inside say why."""
    if len(source) > MAX_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return codeop.compile_command(source, "<input>", "single") is not None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return None


def lines_of_pipe() -> Iterator[str]:
    """Lines of standard input as they come."""
    if sys.stdin is None:
        raise BadArgument("standard input is closed: there is nothing to run")
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise BadArgument(f"line {number} of standard input is not UTF-8; save it as UTF-8") from None


def lines_of_terminal(statements: Statements) -> Iterator[str]:
    """Lines that somebody types, until Ctrl-D. Ctrl-C drops what was begun."""
    editor = _editor()
    path = _history_file()
    if editor is not None and path is not None:
        _load(editor, path)
    try:
        while True:
            try:
                line = input(MORE if statements else PROMPT)
            except KeyboardInterrupt:
                statements.drop()
                terminal.show(sys.stdout, [""])
                continue
            except EOFError:
                terminal.show(sys.stdout, [""])
                return
            except UnicodeDecodeError:
                terminal.error("what was typed is not text in the encoding of this terminal")
                continue
            yield line
    finally:
        if editor is not None and path is not None:
            _store(editor, path)


def _editor() -> ModuleType | None:
    try:
        import readline
    except ImportError:  # not every Python has it: then without history
        return None
    readline.parse_and_bind("tab: self-insert")  # names of files on this machine would be the wrong ones
    return readline


def _history_file() -> str | None:
    directory = user_directory("XDG_STATE_HOME", os.path.join(".local", "state"))
    return None if directory is None else os.path.join(directory, "history")


def _load(editor: ModuleType, path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        editor.read_history_file(path)
    except (OSError, UnicodeError):
        pass  # a shell without a memory is a shell


def _store(editor: ModuleType, path: str) -> None:
    before = os.umask(0o077)  # it may be written anew
    try:
        editor.set_history_length(HISTORY_LINES)
        editor.write_history_file(path)
        os.chmod(path, 0o600)
    except OSError:
        pass
    finally:
        os.umask(before)
