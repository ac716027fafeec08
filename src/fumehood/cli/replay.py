"""`fumehood replay`: run again what was recorded, and show what differs."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterator
from typing import Any

from . import history, terminal

SAME, DIFFERENT = 0, 1
MAX_DIFF_LINES = 40


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `replay`."""
    parser = subparsers.add_parser(
        "replay",
        help="run a recorded run again and show what differs",
        description="Run a recorded run again and show what differs.",
        epilog="exit code: 0 everything came out the same; 1 something differs or could not be replayed; 2 usage, "
        "or there is no such run.",
    )
    parser.add_argument("run", metavar="RUN", help="a run id, or the beginning of one execution's id")
    parser.add_argument("--backend", metavar="B", help="where it runs (SANDBOX_TYPE)")
    parser.add_argument("--dir", metavar="D", help="directory of the records (SANDBOX_ARTIFACTS_DIR/executions)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """`fumehood replay`"""
    from .. import replay  # loads the engine, which `--help` does not need

    found = replay.find(history.records_directory(args), args.run)
    for message in found.unreadable:
        terminal.note(f"cannot be read: {message}")
    style = terminal.Style.for_stream(sys.stdout)
    outcomes = []
    for outcome in replay.replay(found, type=args.backend):
        outcomes.append(outcome)
        if not args.json:
            terminal.show(sys.stdout, _lines(outcome, style))
    counts = {status: sum(o.status == status for o in outcomes) for status in ("same", "differs", "not replayed")}
    same = counts["same"] == len(outcomes) and not found.missing
    if args.json:
        document = {"run": args.run, "same": same, "missing_steps": found.missing, "steps": list(map(_json, outcomes))}
        terminal.show(sys.stdout, [terminal.as_json(document)])
    else:
        terminal.show(sys.stdout, [", ".join(f"{count} {status}" for status, count in counts.items() if count)])
        if found.missing:
            terminal.note(
                f"not stored: step {', '.join(map(str, found.missing[:20]))}; only SANDBOX_STORE_CODE=always keeps all"
            )
    return SAME if same else DIFFERENT


def _lines(outcome: Any, style: terminal.Style) -> Iterator[str]:
    record = outcome.record
    colour = {"same": "green", "differs": "red", "not replayed": "yellow"}[outcome.status]
    what = record.get("command") or record.get("path") or record.get("code") or ""
    text = " ".join(what) if isinstance(what, list) else str(what)
    step, title = _one_line(str(record.get("step")), 20), _one_line(text, 60)
    yield f"step {step}  {style(outcome.status, colour)}  {style(_kind(record), 'dim')} {title}".rstrip()
    for note in outcome.notes:
        yield f"  {style(_one_line(note, 500), 'dim')}"
    for name, (then, now) in outcome.differences.items():
        if name in ("stdout", "stderr"):
            yield from _diff(name, str(then), str(now), style)
        elif name in ("results", "files"):
            yield from _diff(name, _pretty(then), _pretty(now), style)
        else:
            yield f"  {name}: {style(str(then))} then, {style(str(now))} now"


def _diff(name: str, then: str, now: str, style: terminal.Style) -> Iterator[str]:
    lines = list(
        difflib.unified_diff(
            terminal.safe(then).splitlines(),
            terminal.safe(now).splitlines(),
            f"{name} then",
            f"{name} now",
            lineterm="",
            n=2,
        )
    ) or [f"{name} differs in line ends or invisible characters"]
    for line in lines[:MAX_DIFF_LINES]:
        colour = {"+": ("green",), "-": ("red",)}.get(line[:1], ())
        yield f"  {style(_one_line(line, 300), *colour)}"
    if len(lines) > MAX_DIFF_LINES:
        yield f"  … {len(lines) - MAX_DIFF_LINES} more lines; --json has all"


def _pretty(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, default=str)


def _one_line(text: str, longest: int) -> str:
    line = terminal.safe(text).replace("\n", "\\n").replace("\t", " ")
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _kind(record: Any) -> str:
    return str(record.get("kind") or "execute")


def _json(outcome: Any) -> dict[str, Any]:
    record = outcome.record
    return {
        "step": record.get("step"),
        "execution_id": record.get("execution_id"),
        "kind": _kind(record),
        "status": outcome.status,
        "notes": list(outcome.notes),
        "differences": {name: {"then": then, "now": now} for name, (then, now) in outcome.differences.items()},
    }
