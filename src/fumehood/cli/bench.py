"""`fumehood bench`: what a sandbox costs on this machine, beside what one would use instead."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from . import terminal

_MISSED = 1


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench`."""
    parser = subparsers.add_parser(
        "bench",
        help="measure what a sandbox costs here",
        description="Measure sandboxes and their alternatives side by side. Exits with 1 if a bar is missed.",
    )
    parser.set_defaults(handler=run)
    parser.add_argument("--rounds", type=_positive, default=100, metavar="N", help="executions of each (default 100)")
    parser.add_argument(
        "--full", action="store_true", help="also load, memory, the data stack, the server and what else is installed"
    )
    parser.add_argument("--server", action="store_true", help="the server alone, beside the Python API")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="also draw the table")
    parser.add_argument("--json", action="store_true", help="print JSON, raw samples included")
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write the JSON there")


def run(args: argparse.Namespace) -> int:
    from ..bench import Options, run_bench  # loaded only by this command

    outcome = run_bench(Options(rounds=args.rounds, full=args.full, server=args.server), _progress)
    document = json.dumps(outcome, indent=2)
    if args.save:
        args.save.write_text(document + "\n")
    if args.chart and outcome["series"]:
        from ..bench.chart import draw

        args.chart.write_text(draw(outcome["series"], "One small program, start to result (median)"))
    terminal.show(sys.stdout, [document] if args.json else _table(outcome))
    return 0 if all(bar["holds"] for bar in outcome["bars"]) else _MISSED


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _progress(line: str) -> None:
    terminal.show(sys.stderr, [line])


def _table(outcome: dict[str, Any]) -> list[str]:
    machine = outcome["machine"]
    lines = [
        "fumehood {fumehood}, Python {python}, Linux {kernel} {machine}, {cores} cores, uid {uid}, "
        "load {load_1min:.1f}".format(**machine),
        "",
        *_rows("", outcome["series"]),
    ]
    if "after_a_pause" in outcome:
        lines += ["", *_rows("after a pause of 30 ms", outcome["after_a_pause"])]
    lines += _more(outcome)
    lines += ["", f"{'bar':56} {'measured':>12} {'promised':>20}"]
    for bar in outcome["bars"]:
        verdict = "holds" if bar["holds"] else "MISSED"
        bound = "at least" if bar["at_least"] else "at most"
        unit = bar["unit"]
        lines.append(f"{bar['name']:56} {bar['value']:8.3f} {unit:3} {bound:>9} {bar['limit']:6.3f} {unit:3} {verdict}")
    return lines


def _rows(title: str, series: list[dict[str, Any]]) -> list[str]:
    return [
        f"{title:36} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'per s':>7} {'of bare':>8}",
        *(
            "{name:36} {p50_ms:8.2f} {p95_ms:8.2f} {p99_ms:8.2f} {per_second:7.0f} {of_bare:7.3f}×".format(**row)
            for row in series
        ),
    ]


def _more(outcome: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if "load" in outcome:
        load = outcome["load"]
        rates = load["per_second"]
        lines += ["", f"{load['at_once']} at once: bare {rates['bare']:.0f}/s, fumehood {rates['fumehood']:.0f}/s"]
        lines += [
            "{at_once:4} at once: {ms_each:6.2f} ms each, {per_second:5.0f}/s, p50 {p50_ms:8.1f} ms".format(**row)
            for row in load["growth"]
        ]
    if "server" in outcome:
        lines += ["", *_served(outcome["server"])]
    for kind, found in outcome.get("memory", {}).items():
        private, pss = (found[name] / 2**20 for name in ("private_dirty", "pss"))
        fit = found["cells_per_gib"]
        lines.append(f"a waiting cell, {kind}: {private:.1f} MiB private, {pss:.1f} MiB PSS, {fit:.0f} in a GiB")
    return lines


def _served(found: dict[str, Any]) -> list[str]:
    if "skipped" in found:
        return [f"server: skipped, {found['skipped']}"]
    return [
        "{clients} clients of the server at once: {requests} requests, {errors} errors, {per_second:.0f}/s"
        " (Python API {api_per_second:.0f}/s),".format(**found),
        "  p50 {p50_ms:.0f} ms, p95 {p95_ms:.0f} ms, {cpu_ms_each:.2f} ms of its CPU each".format(**found),
        *(f"  {error}" for error in found["first_errors"]),
    ]
