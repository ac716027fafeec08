"""One run of the benchmark: measure, compare with the bars, hand back plain data."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from .. import __version__
from . import candidates, fresh
from .samples import Series, interleave

FIRST_ROUNDS = 9


@dataclass(frozen=True)
class Options:
    rounds: int = 100
    alternatives: bool = True


@dataclass(frozen=True)
class Bar:
    """A promise: `value` must not be above `limit`."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def run_bench(options: Options, progress: Callable[[str], None]) -> dict[str, Any]:
    """Takes `progress` a line at a time, gives raw samples, summaries and bars."""
    with ExitStack() as stack:
        chosen = [candidates.bare(), candidates.cold(stack)]
        if options.alternatives:
            chosen += candidates.alternatives()
        names = ", ".join(candidate.name for candidate in chosen)
        series = interleave(chosen, options.rounds, _each_tenth(f"one after the other: {names}", progress))
    progress(f"first calls in {FIRST_ROUNDS} new processes")
    once = [fresh.first_call(FIRST_ROUNDS), fresh.import_time(FIRST_ROUNDS)]
    return {
        "machine": machine(),
        "rounds": options.rounds,
        "series": [summary(item, series[0]) for item in (*series, *once)],
        "bars": [{**vars(bar), "holds": bar.holds} for bar in bars(series, once)],
        "samples_s": {item.name: item.seconds for item in (*series, *once)},
    }


def bars(series: list[Series], once: list[Series]) -> list[Bar]:
    p50 = {item.name: item.p50 for item in (*series, *once)}
    base = p50[candidates.BARE]
    return [
        Bar("no warm cell, p50 of bare", p50[candidates.COLD] / base, 0.6, "×"),
        Bar("first call of a process, p50 of bare", once[0].p50 / base, 5, "×"),
        Bar("from fumehood import get_sandbox", once[1].p50 * 1000, 60, "ms"),
    ]


def summary(item: Series, base: Series) -> dict[str, Any]:
    return {
        "name": item.name,
        "p50_ms": item.p50 * 1000,
        "p95_ms": item.percentile(95) * 1000,
        "p99_ms": item.percentile(99) * 1000,
        "per_second": len(item.seconds) / sum(item.seconds),
        "of_bare": item.p50 / base.p50,
    }


def machine() -> dict[str, Any]:
    return {
        "fumehood": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "uid": os.geteuid(),
        "load_1min": os.getloadavg()[0],
    }


def _each_tenth(what: str, progress: Callable[[str], None]) -> Callable[[int, int], None]:
    progress(what)

    def report(done: int, total: int) -> None:
        if done == total or done % max(1, total // 10) == 0:
            progress(f"  {done} of {total}")

    return report
