"""`fumehood shell`: a session to type into."""

from __future__ import annotations

import argparse
import base64
import binascii
import codecs
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import BadArgument, CommandNotAllowed, FumehoodError
from ..types import Display, Output
from . import run as one_shot
from . import terminal
from .shell_input import Statements, lines_of_pipe, lines_of_terminal

if TYPE_CHECKING:
    from ..sync_session import Session
    from ..types import ExecutionResult, Receipt

FAILED = 1
IMAGES = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}
HELP = """Python runs in a sandbox and remembers its variables. A block ends with an empty line.
!COMMAND    run a command in the same files, without a shell: !ls -l, or !sh -c 'ls *.csv'
:files      the files in the sandbox
:datasets   where the datasets are
:reset      end this sandbox and start a fresh one
:quit       end (also Ctrl-D)
Ctrl-C ends what runs and keeps the variables. Figures and files in /tmp/output are saved on this machine."""


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `shell`."""
    parser = subparsers.add_parser(
        "shell",
        help="type Python into a sandbox that remembers",
        description="Type Python into a sandbox that keeps its variables and files. From a pipe or a file it reads "
        "the same lines without prompts and history: each statement runs when it is complete, and after one that "
        "failed the next one runs.",
        epilog="exit code: 0 from a terminal; else that of the last line that failed, 0 if none did, 130 after Ctrl-C, "
        "which ends the reading; 2 usage; 78 bad configuration; 125, 126 no sandbox.",
    )
    one_shot.add_sandbox_options(parser)
    parser.add_argument("--timeout", metavar="S", type=float, help="seconds each run may take (SANDBOX_TIMEOUT_SEC)")
    parser.add_argument("--dataset", metavar="NAME=PATH", action="append", default=[], help="a file to read inside")
    parser.add_argument("--requirement", metavar="R", action="append", default=[], help="a package to install for it")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """`fumehood shell`"""
    datasets = _datasets(args.dataset)
    settings = one_shot.load_settings(args).settings
    if args.timeout is not None:
        from .. import config  # as above: `--help` is instant

        config.clamp_timeout(args.timeout, settings)  # a bad one is an error now, not with the first run
    shell = Shell(settings._asdict(), datasets, args.requirement, args.timeout)
    interactive = terminal.is_terminal(sys.stdin)
    try:
        with _handling(_leave, signal.SIGTERM, signal.SIGHUP), shell:
            return shell.talk() if interactive else shell.read()
    except one_shot.Interrupted as signalled:
        return 128 + signalled.number


class Shell:
    """One session at a time, and what was last wrong in it."""

    def __init__(
        self, settings: Mapping[str, Any], datasets: Mapping[str, str], requirements: list[str], timeout: float | None
    ) -> None:
        self._settings = settings
        self._datasets = datasets
        self._requirements = requirements
        self._timeout = timeout
        self._session: Session | None = None
        self._figures = 0
        self._interrupted = False
        self._failure = 0

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def talk(self) -> int:
        """With somebody at a terminal."""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # even if our parent ignores it
        level = self._ready().level
        terminal.note(f"{__version__}, {self._open().backend_name}, {level}; :help says what can be typed")
        statements = Statements()
        for line in lines_of_terminal(statements):
            if not self._take(statements, line):
                break
        return 0

    def read(self) -> int:
        """From a pipe or a file."""
        self._ready()
        statements = Statements()
        for line in lines_of_pipe():
            if not self._take(statements, line) or self._interrupted:
                break
        else:
            self._python(statements.rest())
        return 128 + signal.SIGINT if self._interrupted else self._failure

    def _take(self, statements: Statements, line: str) -> bool:
        """False: enough."""
        if statements.between() and line.lstrip()[:1] in (":", "!"):
            self._python(statements.rest())
            word = line.strip()
            return self._command(word[1:].strip()) if word[0] == ":" else self._guarded(lambda: self._exec(word[1:]))
        for source in statements.feed(line):
            self._python(source)
        return True

    def _python(self, source: str) -> None:
        if source.strip():
            self._guarded(lambda: self._stream(source))

    def _exec(self, text: str) -> None:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise BadArgument(f"{text!r} cannot be split into words: {error}") from None
        if not words:
            raise BadArgument("! needs a command, such as !ls")
        self._stream(words)

    def _command(self, word: str) -> bool:
        if word in ("quit", "q", "exit"):
            return False
        commands: dict[str, Callable[[], object]] = {
            "help": lambda: terminal.show(sys.stdout, [HELP]),
            "files": lambda: self._listing(f"{f.size:>12,}  {f.path}" for f in self._open().files()),
            "datasets": lambda: self._listing(f"{name}  {path}" for name, path in self._open().datasets.items()),
            "reset": self._reset,
        }
        if word in commands:
            self._guarded(commands[word])
        else:
            terminal.error(f":{word} is not a command; there are :{', :'.join(commands)} and :quit")
            self._failure = FAILED
        return True

    def _listing(self, lines: Iterator[str]) -> None:
        terminal.show(sys.stdout, [terminal.safe(line).replace("\n", "\\n") for line in lines] or ["none"])

    def _reset(self) -> None:
        self._close()
        self._ready()
        terminal.note("a fresh sandbox: variables and files are gone")

    def _ready(self) -> Receipt:
        receipt = self._open().check()
        if receipt.fallback is not None:
            terminal.note(one_shot.fallback_line(receipt.fallback))
        return receipt

    def _open(self) -> Session:
        if self._session is None:
            from ..sync_session import open_session  # loads the engine

            self._figures = 0
            self._session = open_session(
                datasets=self._datasets, requirements=self._requirements or None, io_handler=self, **self._settings
            )
        return self._session

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def send_progress(self, text: str) -> None:
        """The session tells what takes its time."""
        terminal.note(text)

    def _guarded(self, action: Callable[[], object]) -> bool:
        try:
            action()
        except CommandNotAllowed as error:
            terminal.error(str(error))
            self._failure = one_shot.REFUSED
        except FumehoodError as error:
            terminal.error(str(error))
            self._failure = FAILED
            if self._session is not None and self._session.ended:
                terminal.note(":reset starts a fresh sandbox")
        return True

    def _stream(self, program: str | list[str]) -> None:
        session = self._open()
        decode = {name: codecs.getincrementaldecoder("utf-8")("replace").decode for name in ("stdout", "stderr")}
        with self._cancelling(session), session.stream(program, self._timeout) as events:
            for event in events:
                if isinstance(event, Output):
                    stream = sys.stdout if event.stream == "stdout" else sys.stderr
                    terminal.write(stream, decode[event.stream](event.data))
                elif isinstance(event, Display):
                    self._display(session, event.data)
            result = events.result
        self._afterwards(result)

    def _afterwards(self, result: ExecutionResult) -> None:
        meta = result.meta
        # The last lines of stderr are ours where a program did not end by itself; they were not in the stream.
        ours = (meta["reason"] not in ("ok", "error")) + (meta.get("state") == "lost")
        if ours:
            terminal.write(sys.stderr, "".join(result.stderr.splitlines(keepends=True)[-ours:]))
        for path in meta.get("copied_files", ()):
            terminal.note(f"saved {os.path.relpath(path)}")
        for warning in meta.get("output_warnings", ()):
            terminal.note(warning)
        if result.exit_code != 0:
            self._failure = one_shot.exit_code(result)

    def _display(self, session: Session, bundle: Mapping[str, Any]) -> None:
        for mime, suffix in IMAGES.items():
            if isinstance(bundle.get(mime), str) and self._save(session, bundle[mime], suffix):
                return
        text = bundle.get("text/plain")
        if not isinstance(text, str):
            text = json.dumps(dict(bundle), default=str)
        terminal.write(sys.stdout, text.removesuffix("\n") + "\n")

    def _save(self, session: Session, data: str, suffix: str) -> bool:
        from ..copies import Copies

        try:
            raw = data.encode() if suffix == "svg" else base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):  # the program says what it likes
            return False
        self._figures += 1
        try:
            copies = Copies(os.path.dirname(session.output_dir), session.session_id)
            path = copies.save(f"figure-{self._figures}.{suffix}", raw)
        except OSError as error:
            terminal.error(f"a figure cannot be saved in {session.output_dir}: {error.strerror or error}")
            return True
        terminal.show(sys.stdout, [terminal.safe(os.path.relpath(path))])
        return True

    @contextmanager
    def _cancelling(self, session: Session) -> Iterator[None]:
        """Ctrl-C ends the run, not the shell."""

        def cancel(_number: int, _frame: FrameType | None) -> None:
            self._interrupted = True
            session.cancel()

        self._interrupted = False
        with _handling(cancel, signal.SIGINT):
            yield


def _leave(number: int, _frame: FrameType | None) -> None:
    raise one_shot.Interrupted(number)


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    """For a while, and not for those that our parent told us to ignore."""
    numbers = tuple(number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None))
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _datasets(items: list[str]) -> dict[str, str]:
    found = {}
    for item in items:
        name, separator, path = item.partition("=")
        if not separator or not name or not path:
            raise BadArgument(f"--dataset takes NAME=PATH, not {item!r}")
        found[name] = path
    return found
