"""How stored executions look on a terminal. Whatever a program wrote goes through `terminal.safe` here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from ..records import Report
from . import terminal

TITLES = ("TIME (UTC)", "ID", "BACKEND", "LANGUAGE", "EXIT", "OUTCOME", "SECONDS", "CODE")
ALIGNED_ROWS = 500  # those that come later may make a column wider, never narrower


def table(chosen: Iterable[tuple[dict[str, Any], str]]) -> Iterator[str]:
    style = terminal.Style.for_stream(sys.stdout)
    rows = chain([TITLES], (_row(record, name) for record, name in chosen))
    widths = [0] * (len(TITLES) - 1)
    titled = False
    while some := list(islice(rows, ALIGNED_ROWS)):
        widths = [max(width, *(len(row[i]) for row in some)) for i, width in enumerate(widths)]
        for row in some:
            line = "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
            colour = () if titled and row[4] == "0" else ("red",) if titled else ("bold",)
            titled = True
            yield style(line, *colour)


def _row(record: dict[str, Any], name: str) -> tuple[str, ...]:
    cells = (
        _text(record, "timestamp")[:19].replace("T", " ") or name[:15],
        (_text(record, "execution_id") or _text(record, "hash"))[:24],
        _where(record),
        _text(record, "language") or _text(record, "kind"),
        str(exit_code(record)),
        _outcome(record),
        _seconds(_result(record).get("duration")),
        _what_ran(record),
    )
    return tuple(_one_line(cell) for cell in cells)  # before they are measured: spelled out, a character is wider


def _what_ran(record: dict[str, Any]) -> str:
    """The command of one, the path of a file that was written, or else the code's first line."""
    command, path = record.get("command"), _text(record, "path")
    if isinstance(command, list) and command:
        return " ".join(map(str, command))[:80]
    return path or _first_line(_text(record, "code"))


def page(record: dict[str, Any], name: str) -> Iterator[str]:
    style = terminal.Style.for_stream(sys.stdout)
    result = _result(record)
    meta = result.get("meta") if isinstance(result.get("meta"), dict) else {}
    isolation = meta.get("isolation") if isinstance(meta, dict) else None
    pairs = {
        "execution": record.get("execution_id"),
        "time": record.get("timestamp"),
        "run": record.get("run_id"),
        "step": record.get("step"),
        "reason given": record.get("reasoning_trace"),
        "backend": record.get("backend"),
        "fallback": _fallback(record),
        "isolation": isolation.get("level") if isinstance(isolation, dict) else None,
        "kind": record.get("kind"),
        "session": record.get("session_id"),
        "language": record.get("language"),
        "command": _json(record.get("command")),
        "path": record.get("path"),
        "arguments": _json(record.get("args")),
        "environment": _json(record.get("env")),
        "input": f"{record['stdin_bytes']} bytes" if record.get("stdin_bytes") else None,
        "files": _json(record.get("files")),
        "exit code": f"{exit_code(record)} ({_outcome(record)})",
        "duration": f"{_seconds(result.get('duration'))} s of {record.get('timeout')} s",
        "record": f"{record.get('sequence')}, {name}",
        "hash": record.get("hash"),
    }
    for label, value in pairs.items():
        if value is not None:
            yield f"{style(f'{label:12}', 'dim')} {_one_line(str(value))}"
    for label, text in (
        ("code", _text(record, "code")),
        ("stdout", _text(result, "stdout")),
        ("stderr", _text(result, "stderr")),
    ):
        if text:
            yield ""
            yield style(f"── {label}", "bold")
            yield style(text.removesuffix("\n"))


def verdict(report: Report) -> Iterator[str]:
    style = terminal.Style.for_stream(sys.stdout)
    if report.ok:
        yield f"{style('sound', 'green')}: {report.records} record(s), none missing, none changed"
    else:
        yield f"{style('BROKEN', 'red', 'bold')}: {len(report.problems)} problem(s) in {report.records} record(s)"
        yield from (f"  - {style(problem.message)}" for problem in report.problems)
    if report.pruned:
        yield f"pruned  {report.pruned.count} before them, last at {style(report.pruned.at)}"
    if report.expected_at is not None:
        newer = report.sequence - report.expected_at
        yield f"expect  found as record {report.expected_at}; {newer} newer"
    yield from (f"note    {style(note)}" for note in report.notes)
    if report.head:
        yield f"head    {style(report.head)} (record {report.sequence})"


def _result(record: dict[str, Any]) -> dict[str, Any]:
    result = record.get("result")
    return result if isinstance(result, dict) else {}


def exit_code(record: dict[str, Any]) -> object:
    return _result(record).get("exit_code", "?")


def _outcome(record: dict[str, Any]) -> str:
    meta = _result(record).get("meta")
    reason = meta.get("reason") if isinstance(meta, dict) else None
    return str(reason or ("ok" if exit_code(record) == 0 else "error"))


def _where(record: dict[str, Any]) -> str:
    stamp = _stamp(record)
    return _text(record, "backend") + ("" if stamp is None else f" for {stamp.get('from')}")


def _fallback(record: dict[str, Any]) -> str | None:
    stamp = _stamp(record)
    return None if stamp is None else f"instead of {stamp.get('from')}: {stamp.get('reason')}"


def _stamp(record: dict[str, Any]) -> dict[str, Any] | None:
    meta = _result(record).get("meta")
    stamp = meta.get("fallback") if isinstance(meta, dict) else None
    return stamp if isinstance(stamp, dict) else None


def _text(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    return "" if value is None else str(value)


def _seconds(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else "?"


def _json(value: object) -> str | None:
    return json.dumps(value) if value else None


def _first_line(code: str) -> str:
    line = next((line.strip() for line in code.splitlines() if line.strip()), "")
    return line if len(line) <= 60 else f"{line[:59]}…"


def _one_line(text: str) -> str:
    return terminal.safe(text).replace("\n", "\\n").replace("\t", " ")
