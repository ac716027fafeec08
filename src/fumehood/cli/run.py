"""`fumehood run`: one program in a sandbox, its output and exit code handed on."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, Never

from ..errors import BadArgument, EngineFailed
from ..threads import NO_THREAD, begin
from . import terminal

if TYPE_CHECKING:
    from ..api import OneShot
    from ..config import Loaded, Settings
    from ..types import ExecutionResult

TIMED_OUT, REFUSED, NOT_FOUND = 124, 126, 127
MAX_INPUT_BYTES = 64 * 1024 * 1024  # of code, of standard input, and of each file handed in
LANGUAGE_OF_SUFFIX = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".sh": "bash", ".bash": "bash"}

EPILOG = """exit code: the program's own; 124 it timed out; 125 the engine failed; 126 refused by policy
(a blocked import, --require not met, a language that is not allowed); 127 a file or a language's runtime
was not found; 128+n killed by signal n (130 on Ctrl-C); 2 usage; 78 bad configuration."""


class NotFound(BadArgument):
    """A file named on the command line cannot be read."""


class Interrupted(BaseException):
    """A signal asked us to stop."""

    def __init__(self, number: int):
        self.number = number


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `run`."""
    parser = subparsers.add_parser(
        "run",
        help="run a program in a sandbox",
        usage="fumehood run (FILE | -c CODE | -) [options] [-- ARGS...]",
        description="Run a program in a sandbox. Its output and exit code are passed on.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(handler=run, program_args=[])
    parser.add_argument("file", nargs="?", metavar="FILE", help="the program; - reads it from standard input")
    parser.add_argument("-c", "--code", metavar="CODE", help="the program itself")
    add_sandbox_options(parser)
    parser.add_argument("--language", metavar="L", help="default: from the file's suffix, else python")
    parser.add_argument("--timeout", metavar="S", type=float, help="seconds of wall time (SANDBOX_TIMEOUT_SEC)")
    parser.add_argument("--network", action="store_true", help="let the program reach the network")
    parser.add_argument("--env", metavar="K=V", action="append", default=[], help="a variable for the program")
    parser.add_argument("--file", metavar="NAME=PATH", dest="files", action="append", default=[], help="a file for it")
    parser.add_argument("--stdin", metavar="FILE", help="its standard input; default: ours, unless a terminal")
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")


def add_sandbox_options(parser: argparse.ArgumentParser) -> None:
    """The options that choose a sandbox, the same for every command that makes one."""
    levels = ("process", "confined", "sealed")
    parser.add_argument("--backend", metavar="B", help="where it runs (SANDBOX_TYPE)")
    parser.add_argument("--isolation", choices=("auto", *levels), help="the level to use (SANDBOX_ISOLATION)")
    parser.add_argument("--require", choices=levels, help="refuse to run with less (SANDBOX_REQUIRE)")
    parser.add_argument("--env-file", metavar="F", help="read settings from this .env file too")


def load_settings(args: argparse.Namespace) -> Loaded:
    """The settings in force, those named on the command line on top."""
    from .. import config  # not at the top: `--help` and a usage error should be instant

    named = {"type": args.backend, "isolation": args.isolation, "require": args.require}
    named["network"] = getattr(args, "network", False) or None  # None: not given
    return config.load(named, env_file=Path(args.env_file) if args.env_file else None)


def open_sandbox(settings: Settings) -> OneShot:
    """A sandbox for these settings."""
    from .. import api  # as above

    return api.OneShot(settings)


def run(args: argparse.Namespace) -> int:
    code, language = _program(args)
    request = {
        "language": args.language or language,
        "timeout": args.timeout,
        "args": args.program_args,
        "env": pairs("--env", args.env),
        "files": {name: _read_file(path) for name, path in pairs("--file", args.files).items()},
        "stdin": _stdin(args),
    }
    with open_sandbox(load_settings(args).settings) as sandbox:
        result, interrupted = _execute(sandbox, code, request)
    if result is not None:
        _report(result, args.json)
    if interrupted is not None:
        return 128 + interrupted
    assert result is not None
    return exit_code(result)


def exit_code(result: ExecutionResult) -> int:
    """What the shell sees."""
    reason = result.meta.get("reason", "")
    special = {"timeout": TIMED_OUT, "blocked_import": REFUSED, "cancelled": 128 + signal.SIGINT}
    return special.get(reason, result.exit_code & 0xFF)


def _execute(sandbox: OneShot, code: str, request: Mapping[str, Any]) -> tuple[ExecutionResult | None, int | None]:
    """Run in a thread, so that a signal to us can cancel the program at any moment."""
    outcome: list[Any] = []
    done, stop = threading.Event(), threading.Event()

    def work() -> None:
        try:
            outcome.append(sandbox.execute(code, **request, cancel=stop))
        except BaseException as error:
            outcome.append(error)
        finally:
            done.set()

    interrupted = None
    try:
        with _Signals():
            if not begin(threading.Thread(target=work, name="fumehood-run", daemon=True)):
                raise EngineFailed(NO_THREAD)
            done.wait()
    except Interrupted as signalled:
        interrupted = signalled.number
        stop.set()
        done.wait(5)
    value = outcome[0] if outcome else None
    if isinstance(value, BaseException):
        if interrupted is None:
            raise value
        value = None
    return value, interrupted


class _Signals:
    """Turn the signals that end us into `Interrupted`, except those that our parent told us to ignore."""

    def __enter__(self) -> None:
        self._old = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._old[number] = signal.signal(number, self._raise)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    @staticmethod
    def _raise(number: int, _frame: FrameType | None) -> Never:
        raise Interrupted(number)


def _report(result: ExecutionResult, as_json: bool) -> None:
    try:
        if as_json:
            terminal.write(sys.stdout, to_json(result) + "\n")
            return
        terminal.write(sys.stdout, result.stdout)
    except BrokenPipeError:  # `| head`: the exit code is still the program's
        terminal.silence(sys.stdout)
    if not as_json:
        terminal.write(sys.stderr, result.stderr)
        if "fallback" in result.meta:
            terminal.note(fallback_line(result.meta["fallback"]))
        if result.meta.get("timeout_clamped"):
            terminal.note(f"the timeout was cut to {result.meta['timeout']:g} s, the ceiling (SANDBOX_MAX_TIMEOUT_SEC)")
        if result.meta.get("truncated"):
            terminal.note("the output was cut; SANDBOX_MAX_OUTPUT_KB raises the limit")


def fallback_line(stamp: Mapping[str, str]) -> str:
    """Who ran it instead, and why."""
    return f"{stamp['to']} stood in for {stamp['from']} (SANDBOX_FALLBACK): {stamp['reason']}"


def to_json(result: ExecutionResult) -> str:
    document = {
        "stdout": terminal.well_formed(result.stdout),
        "stderr": terminal.well_formed(result.stderr),
        "exit_code": result.exit_code,
        "duration": result.duration,
        "meta": result.meta,
    }
    return json.dumps(document, default=str)


def _program(args: argparse.Namespace) -> tuple[str, str]:
    if (args.file is None) == (args.code is None):
        raise BadArgument("run needs one program: a FILE, -c CODE, or - for standard input; see fumehood run --help")
    if args.code is not None:
        return args.code, "python"
    if args.file == "-":
        if sys.stdin is None:
            raise BadArgument("standard input is closed, and - says that the program is there")
        return _as_text(_read_stream(sys.stdin.buffer, "standard input"), "standard input"), "python"
    language = LANGUAGE_OF_SUFFIX.get(Path(args.file).suffix.lower(), "python")
    return _as_text(_read_file(args.file), args.file), language


def _as_text(data: bytes, origin: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadArgument(f"{origin} is not UTF-8 (byte {error.start}); save it as UTF-8 and try again") from None


def pairs(option: str, items: list[str]) -> dict[str, str]:
    """NAME=VALUE, any number of times."""
    found = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not name or not separator:
            raise BadArgument(f"{option} takes NAME=VALUE, not {item!r}")
        found[name] = value
    return found


def _stdin(args: argparse.Namespace) -> bytes:
    if args.stdin is not None:
        return _read_file(args.stdin)
    if args.file == "-" or sys.stdin is None:
        return b""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # closed, or no file at all
        return b""
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return b""  # a terminal, /dev/null
    if not select.select([sys.stdin], [], [], 2)[0]:
        terminal.note("waiting for the end of standard input; --stdin /dev/null if the program needs none")
    return _read_stream(sys.stdin.buffer, "standard input")


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return _read_stream(stream, path)
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror or error}; check the path") from None


def _read_stream(stream: BinaryIO, origin: str) -> bytes:
    data = stream.read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        raise BadArgument(f"{origin} is larger than {MAX_INPUT_BYTES // 2**20} MiB; hand in less")
    return data
