"""The `fumehood` command: parse, hand to a subcommand, turn our errors into messages and exit codes."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from .. import __version__, errors
from . import run, terminal

USAGE, ENGINE_FAILED, BAD_CONFIGURATION = 2, 125, 78

# Command: the module that has it, imported when it is named.
COMMANDS = {
    "run": "run",
    "doctor": "doctor",
    "history": "history",
    "show": "history",
    "verify": "history",
    "replay": "replay",
    "shell": "shell",
    "serve": "serve",
    "config": "settings",
    "image": "image",
    "bench": "bench",
}

# The first row that matches decides.
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.ConfigurationError, BAD_CONFIGURATION),
    (run.NotFound, run.NOT_FOUND),
    (errors.BadArgument, USAGE),
    (errors.LanguageNotAllowed, run.REFUSED),
    (errors.IsolationUnavailable, run.REFUSED),
    (errors.RuntimeMissing, run.NOT_FOUND),
    (errors.UnknownBackend, USAGE),
    (errors.ExtraMissing, USAGE),
    (errors.RecordsError, 1),
)


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of one command, or of all where `command` is none."""
    parser = argparse.ArgumentParser(
        prog="fumehood",
        description="Run code that an agent wrote, sealed off from this machine.",
        epilog="Start with: fumehood doctor; fumehood run -c 'print(6 * 7)'",
    )
    parser.add_argument("--version", action="version", version=f"fumehood {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    modules = [COMMANDS[command]] if command in COMMANDS else dict.fromkeys(COMMANDS.values())
    for module in modules:
        import_module(f".{module}", __package__).add_parsers(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The console script."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(words)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    finally:
        _flush()


def _main(words: list[str]) -> int:
    own, passed_on = _split(words)
    parser = build_parser(own[0] if own else "")
    if not own:
        parser.print_help(sys.stderr)
        return USAGE
    try:
        args = parser.parse_args(own)
    except SystemExit as ended:  # argparse has said why
        return ended.code if isinstance(ended.code, int) else USAGE
    if args.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    args.program_args = passed_on
    try:
        return int(args.handler(args))
    except errors.FumehoodError as error:
        return _failed(error, _exit_code(error, args), getattr(args, "json", False))
    except BrokenPipeError:
        raise
    except OSError as error:
        return _failed(error, ENGINE_FAILED, getattr(args, "json", False))
    except Exception:  # a bug of ours must not look like the program's exit code 1
        terminal.write(sys.stderr, traceback.format_exc())
        terminal.error("this is a defect in fumehood; please report it with the lines above")
        return ENGINE_FAILED


def _exit_code(error: errors.FumehoodError, args: argparse.Namespace) -> int:
    if isinstance(error, errors.UnknownBackend) and getattr(args, "backend", None) is None:
        return BAD_CONFIGURATION  # the name came from a setting
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), ENGINE_FAILED)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What follows `--` belongs to the program that `run` runs."""
    if words[:1] == ["run"] and "--" in words:
        place = words.index("--")
        return words[:place], words[place + 1 :]
    return words, []


def _failed(error: Exception, code: int, as_json: bool) -> int:
    if as_json:
        document = {"type": type(error).__name__, "message": terminal.well_formed(str(error)), "exit_code": code}
        if isinstance(error, errors.IsolationUnavailable):
            document |= {"step": error.step, "errno": error.errno, "fix": error.fix}
        terminal.write(sys.stdout, json.dumps({"error": document}) + "\n")
    terminal.error(str(error))
    return code


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            terminal.silence(stream)


if __name__ == "__main__":
    sys.exit(main())
