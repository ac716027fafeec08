"""`fumehood history`, `show` and `verify`: what was run here, and whether the account of it is whole."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

from .. import records
from ..errors import BadArgument, RecordsError
from ..records.head import stamp
from . import history_view, terminal

NOTHING_FOUND, BROKEN = 1, 1
MAX_NAMED = 5  # executions in a message

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `history`, `show` and `verify`."""
    history = subparsers.add_parser("history", help="list stored executions", description="List stored executions.")
    history.add_argument("--limit", type=_count, default=20, metavar="N", help="at most N, newest first (20; 0: all)")
    history.add_argument("--failed", action="store_true", help="only those that did not end with 0")
    history.add_argument(
        "--since", type=_moment, metavar="WHEN", help="only later ones: 2026-11-15, 17:50, 30m, 2h, 7d"
    )
    history.add_argument("--run", metavar="ID", help="only the steps of this run")
    prune = history.add_argument_group("removing old ones")
    prune.add_argument("--prune", action="store_true", help="remove the oldest, to SANDBOX_STORE_MAX_MB or as told by:")
    prune.add_argument("--keep", type=_count, metavar="N", help="keep the newest N")
    prune.add_argument("--older-than", type=_days, metavar="DAYS", help="remove what is older")
    prune.add_argument("--max-mb", type=_size, metavar="MB", help="remove until the rest fits")
    _finish(history, list_records)

    show = subparsers.add_parser(
        "show",
        help="show one stored execution",
        description="Show one stored execution.",
        epilog="exit code: 0; 1 it is broken, or nothing is stored; 2 usage, or the id fits none or several.",
    )
    show.add_argument("id", metavar="ID", help="execution id, hash or file name, or its beginning; or: latest")
    _finish(show, show_record)

    verify = subparsers.add_parser(
        "verify",
        help="check that no stored execution is missing or changed",
        description="Check that no stored execution is missing or changed. Note the head hash it prints somewhere "
        "else: only with that can --expect tell a chain that somebody wrote anew.",
    )
    verify.add_argument("--expect", type=_hash, metavar="HASH", help="a head hash noted earlier must be in the chain")
    _finish(verify, verify_records)


def _finish(parser: argparse.ArgumentParser, handler: object) -> None:
    parser.add_argument("--dir", metavar="D", help="directory of the records (SANDBOX_ARTIFACTS_DIR/executions)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=handler)


def list_records(args: argparse.Namespace) -> int:
    """`fumehood history`"""
    narrowed = args.keep is not None or args.older_than is not None or args.max_mb is not None
    if args.prune:
        return _prune(args, narrowed)
    if narrowed:
        raise BadArgument("--keep, --older-than and --max-mb remove records: add --prune to mean it")
    directory = records_directory(args)
    skipped: list[str] = []
    chosen = _chosen(args, directory, skipped)
    first = list(_first(chosen))
    listed = chain(first, chosen)  # read as they are shown: all of them may be more than the memory holds
    if args.json:
        terminal.show(sys.stdout, _json_list(record for record, _ in listed))
    elif first:
        terminal.show(sys.stdout, history_view.table(listed))
    for message in skipped:
        terminal.note(f"cannot be read: {message}")
    if first:
        return 0
    filtered = args.failed or args.since or args.run
    terminal.note(f"no {'such ' if filtered else ''}execution is stored in {directory}{_why_empty(args)}")
    return NOTHING_FOUND


def show_record(args: argparse.Namespace) -> int:
    """`fumehood show`"""
    directory = records_directory(args)
    if args.id == "latest":
        found = list(_first(records.load_all(directory)))
    else:
        found = records.find(directory, args.id, at_most=MAX_NAMED + 1) if args.id else []
    if not found:
        if args.id == "latest":
            terminal.error(f"no execution is stored in {directory}{_why_empty(args)}")
            return NOTHING_FOUND
        raise BadArgument(
            f"no execution that begins with {args.id!r} is stored in {directory}; `fumehood history` lists what is"
        )
    if len(found) > 1:
        names = ", ".join(terminal.safe(str((e.record or {}).get("execution_id") or e.name)) for e in found[:MAX_NAMED])
        count, more = (f"more than {MAX_NAMED}", ", …") if len(found) > MAX_NAMED else (len(found), "")
        raise BadArgument(f"{args.id!r} fits {count} executions: {names}{more}; give more of it")
    (entry,) = found
    if entry.record is None:
        terminal.error(f"{directory / entry.name} cannot be read: {entry.error}")
        return BROKEN
    if args.json:
        _print_json(entry.record)
    else:
        terminal.show(sys.stdout, history_view.page(entry.record, entry.name))
    if entry.error:
        terminal.error(f"this record was changed after it was written: {entry.error}")
        return BROKEN
    return 0


def verify_records(args: argparse.Namespace) -> int:
    """`fumehood verify`"""
    directory = records_directory(args)
    line = terminal.CountLine("verifying record")
    try:
        report = records.verify(directory, expect=args.expect, progress=line.tell)
    finally:
        line.end()
    empty = report.sequence == 0 and report.records == 0 and report.ok
    if args.json:
        _print_json({"ok": report.ok and not empty, **dataclasses.asdict(report)})
    else:
        terminal.show(sys.stdout, history_view.verdict(report))
    if empty:
        terminal.note(f"nothing to verify: no execution is stored in {directory}{_why_empty(args)}")
        return NOTHING_FOUND
    return 0 if report.ok else BROKEN


def _prune(args: argparse.Namespace, narrowed: bool) -> int:
    directory = records_directory(args)
    max_mb = args.max_mb if narrowed else _settings(args).store_max_mb
    removed = records.prune(
        directory,
        keep=args.keep,
        older_than=args.older_than,
        max_bytes=None if max_mb is None else int(max_mb * 1024 * 1024),
    )
    if args.json:
        _print_json({"directory": str(directory), "removed": removed})
    else:
        terminal.show(sys.stdout, [terminal.safe(f"{removed} removed from {directory}")])
    return 0


def _chosen(args: argparse.Namespace, directory: Path, skipped: list[str]) -> Iterator[tuple[dict[str, Any], str]]:
    left = args.limit or sys.maxsize
    for entry in records.load_all(directory):
        # Names begin with the time of storing, and no execution is stored before it ran.
        if left == 0 or (args.since and entry.name < args.since):
            return
        if (record := entry.record) is None:
            skipped.append(f"{entry.name}: {entry.error}")
        elif (not args.failed or history_view.exit_code(record) != 0) and args.run in (None, record.get("run_id")):
            left -= 1
            yield record, entry.name


def records_directory(args: argparse.Namespace) -> Path:
    """Where `--dir` or the settings say."""
    given = Path(args.dir or _settings(args).artifacts_dir)
    try:
        given.absolute()
    except FileNotFoundError:
        raise RecordsError(
            f"{given} is relative to the working directory, which was deleted: change to a directory that exists, "
            "or give an absolute path with --dir or SANDBOX_ARTIFACTS_DIR"
        ) from None
    if not args.dir:
        return given / "executions"
    inside = given / "executions"  # somebody who names the artifacts directory means this
    return inside if given.name != "executions" and inside.is_dir() else given


def _settings(args: argparse.Namespace) -> Any:
    from .. import config  # loaded only by the commands that need it

    env_file = getattr(args, "env_file", None)
    return config.load(env_file=Path(env_file) if env_file else None).settings


def _why_empty(args: argparse.Namespace) -> str:
    return "" if args.dir else f" (SANDBOX_STORE_CODE={_settings(args).store_code})"


def _first(entries: Iterable[Any]) -> Iterator[Any]:
    for entry in entries:
        yield entry
        return


def _print_json(value: object) -> None:
    terminal.show(sys.stdout, [terminal.as_json(value)])


def _json_list(values: Iterable[object]) -> Iterator[str]:
    """The lines of a JSON list, of which one value is held at a time."""
    held = None
    for value in values:
        yield "[" if held is None else f"{held},"
        held = "  " + terminal.as_json(value).replace("\n", "\n  ")
    yield from ["[]"] if held is None else [held, "]"]


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def _size(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**40:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in MiB")
    return value


def _days(text: str) -> timedelta:
    try:
        age = timedelta(days=float(text.removesuffix("d")))
        _ = datetime.now(UTC) - age  # out of range?
    except (ValueError, OverflowError):
        age = timedelta(days=-1)
    if age < timedelta(0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return age


def _moment(text: str) -> str:
    """A time as the names of records begin."""
    now = datetime.now(UTC)
    try:
        if match := re.fullmatch(r"(\d+)\s*([smhdw])", text.strip()):
            return stamp(now - timedelta(**{_UNITS[match[2]]: int(match[1])}))
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
            text = f"{now.date().isoformat()}T{text:0>5}"
        moment = datetime.fromisoformat(text)
        return stamp(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        what = f"{text!r} is not a time: give a UTC date or time (2026-11-15, 2026-11-15T17:50) or an age (30m, 2h, 7d)"
        raise argparse.ArgumentTypeError(what) from None


def _hash(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise argparse.ArgumentTypeError("a head hash is 64 hexadecimal digits, as `fumehood verify` prints it")
    return text.lower()
