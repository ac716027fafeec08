"""Run as a program: docs/security-tests.md from what `--attacks` wrote as root and as an ordinary user."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fumehood.types import AXES

SECTIONS = {
    "tests/escape/test_probes.py": "Probes",
    "tests/escape/test_attacks.py": "Attacks on the design",
    "tests/escape/test_sessions.py": "Attacks from inside a session",
}
OTHERS = "Attacks on the engine"
HEAD = """# Attacks in the test suite

Made by `scripts/security-tests` from a run of the tests themselves; do not edit. Every row is an attack that a test
makes: in the sandbox, and, in the *control arm*, where nothing holds it. [SECURITY.md](../SECURITY.md) says what is
promised.

- **held by**: the test says which line of the receipt holds the attack, and a receipt of the run says how; or words,
  where it is no line of a receipt
- **outcome**: the errno that the attack met; else how programs and calls of the test ended; *nothing won*: no error,
  and nothing found or changed
- **level**: – where a test works on a part of the engine, without a whole execution
- **control arm**: whether the same attack won without the sandbox, in namespaces made for it and thrown away; or which
  other test of the run shows the same

"""
Row = dict[str, Any]


def main(paths: Sequence[str]) -> None:
    runs = [json.loads(Path(path).read_text("utf-8")) for path in paths]
    lines = [HEAD, "| run | date | kernel | Python | attacks | tests |", "|---|---|---|---|--:|--:|"]
    for run in runs:
        attacks = len({row["attack"] for row in run["rows"]})
        cells = (run["user"], run["date"], run["kernel"], run["python"], str(attacks), str(len(run["rows"])))
        lines.append(_line(cells))
    lines += ["", f"Where the two differ, {' and '.join(run['user'] for run in runs)} are told apart.", ""]
    for title, keys in _sections(runs).items():
        lines += [f"## {title}", "", "| attack | level | held by | outcome | control arm |", "|---|---|---|---|---|"]
        lines += [_line(_cells(key, runs)) for key in keys]
        lines.append("")
    sys.stdout.write("\n".join(lines).rstrip("\n").replace("\n\n\n", "\n\n") + "\n")


def _sections(runs: Sequence[Any]) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {title: {} for title in (*SECTIONS.values(), OTHERS)}
    placed: set[str] = set()
    for run in runs:
        for row in run["rows"]:
            if row["attack"] not in placed:
                placed.add(row["attack"])
                found[SECTIONS.get(row["file"], OTHERS)][row["attack"]] = None
    return {title: list(keys) for title, keys in found.items() if keys}


def _cells(key: str, runs: Sequence[Any]) -> Iterator[str]:
    rows = [[row for row in run["rows"] if row["attack"] == key] for run in runs]
    title = next(row["title"] for some in rows for row in some)
    yield f"{title} (`{key}`)"
    users = [run["user"] for run in runs]
    yield _told([_levels(some) for some in rows], users)
    yield _told([_held_by(some, run["receipts"]) for some, run in zip(rows, runs, strict=True)], users)
    for tell in (_outcome, _control):
        yield _told([tell(some) for some in rows], users)


def _told(said: Sequence[str], users: Sequence[str]) -> str:
    if len(set(said)) == 1:
        return said[0]
    return "; ".join(f"*{user}*: {each or 'not run'}" for user, each in zip(users, said, strict=True))


def _held(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row["wins"] and row["status"] == "passed"]


def _levels(rows: Sequence[Row]) -> str:
    held = _held(rows)
    levels = dict.fromkeys(level for row in held for level in row["levels"])
    times = f", {len(held)} ways" if len(held) > 1 else ""
    return f"{', '.join(levels) or '–'}{times}" if held else "skipped"


def _held_by(rows: Sequence[Row], receipts: dict[str, dict[str, str]]) -> str:
    held = _held(rows)
    if not held:
        return next((row["why"] for row in rows if row["why"]), "")
    mechanisms = {level: text for row in held for level, text in row["mechanisms"].items()}
    if (by := str(held[0]["by"])) not in AXES:
        return by
    levels = [level for row in held for level in row["levels"]]
    mechanisms = {level: mechanisms.get(level) or receipts[level][by] for level in levels}
    if not mechanisms:
        return f"what the receipt says of {by}"
    if len(set(mechanisms.values())) == 1:
        return next(iter(mechanisms.values()))
    return "; ".join(f"{level}: {text}" for level, text in mechanisms.items())


def _outcome(rows: Sequence[Row]) -> str:
    return "; ".join(dict.fromkeys(outcome for row in _held(rows) for outcome in row["outcomes"])) or "held"


def _control(rows: Sequence[Row]) -> str:
    passed = [row for row in rows if row["status"] == "passed"]
    if any(row["won"] or (row["control_passed"] and row["control"] == row["test"]) for row in passed):
        return "yes"
    if other := next((row["control"] for row in passed if row["control_passed"]), None):
        return f"yes, in `{other}`"
    reasons = [row["cannot_win"] or (row["why"] if row["wins"] else None) or row["without"] for row in rows]
    names = [f"that of `{row['control']}` did not win" for row in rows if row["control"]]
    return f"not possible here: {next(filter(None, [*reasons, *names]), 'the test was skipped')}"


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


if __name__ == "__main__":
    main(sys.argv[1:])
