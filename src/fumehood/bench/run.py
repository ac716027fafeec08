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
from . import candidates, containers, fresh, load, memory, served
from .samples import Candidate, Series, interleave

FIRST_ROUNDS = 9
AT_ONCE = 8
PAUSE_S = 0.03  # agents pause, and cores sleep
AFTER_A_PAUSE = ", after a pause"
GROWTH = (1, 8, 64, 500)
_MIB = 1024 * 1024
_GIB = 1024 * _MIB


@dataclass(frozen=True)
class Options:
    rounds: int = 100
    full: bool = False  # also load, memory, growth, the server, and what else is installed
    server: bool = False  # it alone
    docker_image: str = "antigravity-sandbox:latest"


@dataclass(frozen=True)
class Bar:
    """A promise: `value` must not be on the wrong side of `limit`."""

    name: str
    value: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def run_bench(options: Options, progress: Callable[[str], None]) -> dict[str, Any]:
    """Says what it does in lines to `progress`; gives raw samples, summaries and bars."""
    if options.server:
        return _server_alone(options, progress)
    with ExitStack() as stack:
        chosen = [
            candidates.ours(stack, candidates.COLD, warm_cells=0),
            candidates.bare(),  # after one of ours that leaves nothing to be made: that would run beside it
            candidates.ours(stack, candidates.WARM, warm_cells=4),
            *candidates.sessions(stack),
        ]
        if options.full:
            progress("looking for alternatives")
            chosen += candidates.alternatives(stack, options.docker_image)
        names = ", ".join(candidate.name for candidate in chosen)
        series = interleave(chosen, options.rounds, _each_tenth(f"one after the other: {names}", progress))
        report = _each_tenth(f"the same, after a pause of {PAUSE_S * 1000:.0f} ms before each", progress)
        paused = interleave(chosen, options.rounds, report, PAUSE_S)
    for measured in (series, paused):
        measured.sort(key=lambda item: item.name != candidates.BARE)  # the first is what others are compared with
    progress(f"first calls in {FIRST_ROUNDS} new processes")
    once = [fresh.first_call(FIRST_ROUNDS), fresh.import_time(FIRST_ROUNDS)]
    bars = [*_basic_bars(series), *_basic_bars(paused, AFTER_A_PAUSE), *_first_bars(series[0].p50, once)]
    outcome: dict[str, Any] = {"machine": machine(), "rounds": options.rounds}
    if options.full:
        data = _data_stack(options, progress)
        series_of_data = data or []
        bars += _data_bars(series_of_data)
        outcome["load"], load_bars = _load(progress)
        outcome["memory"], memory_bars = _memory(progress)
        bars += load_bars + memory_bars
        series_of_containers = _containers(options, progress)
        bars += _container_bars(series_of_containers)
        series_of_server, outcome["server"], server_bars = _server(options, progress)
        bars += server_bars
        series += series_of_data + series_of_containers + series_of_server
    outcome["series"] = [summary(item, series[0]) for item in (*series, *once)]
    outcome["after_a_pause"] = [summary(item, paused[0]) for item in paused]
    outcome["bars"] = [{**vars(bar), "holds": bar.holds} for bar in bars]
    outcome["samples_s"] = {item.name: item.seconds for item in (*series, *once)}
    outcome["samples_s"] |= {f"{item.name}{AFTER_A_PAUSE}": item.seconds for item in paused}
    return outcome


def _basic_bars(series: list[Series], when: str = "") -> list[Bar]:
    """All measured alike: without a pause, or after one."""
    named = {item.name: item for item in series}
    base = named[candidates.BARE].p50
    warm, session = named[candidates.WARM], named[candidates.SESSION]
    bars = [
        Bar(f"warm cell, p50 of bare p50{when}", warm.p50 / base, 1 / 12, "×"),
        Bar(f"warm cell, p99 of bare p50{when}", warm.percentile(99) / base, 1 / 4, "×"),
        Bar(f"no warm cell, p50 of bare p50{when}", named[candidates.COLD].p50 / base, 0.6, "×"),
        Bar(f"run in a session, p99 of bare p50{when}", session.percentile(99) / base, 1 / 2, "×"),
        Bar(f"command in a session, p50 of bare p50{when}", named[candidates.COMMAND].p50 / base, 0.5, "×"),
        Bar(f"new session and a run, p50 of bare p50{when}", named[candidates.NEW_SESSION].p50 / base, 0.7, "×"),
    ]
    kernel = named.get(candidates.KERNEL)
    if kernel is not None:
        bars.append(Bar(f"run in a session, p50 of ipykernel's{when}", session.p50 / kernel.p50, 1 / 4, "×"))
    return bars


def _first_bars(bare_s: float, once: list[Series]) -> list[Bar]:
    return [
        Bar("first call of a process, of bare p50", once[0].p50 / bare_s, 5, "×"),
        Bar("from fumehood import get_sandbox", once[1].p50 * 1000, 60, "ms"),
    ]


def _data_stack(options: Options, progress: Callable[[str], None]) -> list[Series] | None:
    if not candidates.has_data_stack():
        progress(f"data stack: skipped, {', '.join(candidates.DATA_STACK)} are not installed for {sys.executable}")
        return None
    code, preload = candidates.DATA_CODE, list(candidates.DATA_STACK)
    with ExitStack() as stack:
        chosen: list[Candidate] = [
            candidates.bare(code, candidates.BARE_DATA),
            candidates.ours(stack, candidates.COLD_DATA, code, warm_cells=0, preload=preload),
            candidates.ours(stack, candidates.WARM_DATA, code, warm_cells=2, preload=preload),
        ]
        rounds = max(5, options.rounds // 10)
        return interleave(chosen, rounds, _each_tenth(f"data stack: {', '.join(preload)}", progress))


def _data_bars(series: list[Series]) -> list[Bar]:
    if not series:
        return []
    bare, cold, warm = (item.p50 for item in series)
    return [
        Bar("data stack, warm cell, of bare p50", warm / bare, 1 / 100, "×"),
        Bar("data stack, no warm cell, of bare p50", cold / bare, 1 / 30, "×"),
    ]


def _containers(options: Options, progress: Callable[[str], None]) -> list[Series]:
    rounds = max(5, options.rounds // 5)
    return containers.measure(rounds, _each_tenth("containers, with a pause before each", progress), progress)


def _container_bars(series: list[Series]) -> list[Bar]:
    named = {item.name: item.p50 for item in series}
    if not {containers.WARM, containers.DOCKER_RUN} <= named.keys():
        return []
    ratio = named[containers.WARM] / named[containers.DOCKER_RUN]
    return [Bar("in Docker, one waiting, p50 of docker run's", ratio, 1 / 8, "×")]


def _server_alone(options: Options, progress: Callable[[str], None]) -> dict[str, Any]:
    series, found, bars = _server(options, progress)
    return {
        "machine": machine(),
        "rounds": options.rounds,
        "server": found,
        "series": [summary(item, series[0]) for item in series],
        "bars": [{**vars(bar), "holds": bar.holds} for bar in bars],
        "samples_s": {item.name: item.seconds for item in series},
    }


def _server(options: Options, progress: Callable[[str], None]) -> tuple[list[Series], dict[str, Any], list[Bar]]:
    report = _each_tenth("server, and the Python API beside it, with a short pause before each", progress)
    series, found = served.measure(options.rounds, report, progress)
    if not series:
        return [], found, []
    p50 = {item.name: item.p50 for item in series}
    beyond = {name: (p50[name] - p50[served.API]) * 1000 for name in (served.SERVED, served.NARROWED)}
    return (
        series,
        found,
        [
            *(Bar(f"{name}, p50 beyond execute()'s", ms, 3, "ms") for name, ms in beyond.items()),
            Bar(f"{found['clients']} clients at once, errors", found["errors"], 0, ""),
        ],
    )


def _load(progress: Callable[[str], None]) -> tuple[dict[str, Any], list[Bar]]:
    bare = candidates.bare().call
    rates: dict[str, list[float]] = {"bare": [], "fumehood": []}
    growth = []
    with candidates.sealed() as sandbox:
        ours = candidates.execution(sandbox)
        ours()
        for number in range(3):
            progress(f"{AT_ONCE} at once, part {number + 1} of 3")
            rates["bare"].append(load.throughput(bare, AT_ONCE, 200))
            rates["fumehood"].append(load.throughput(ours, AT_ONCE, 400))
        for at_once in GROWTH:
            progress(f"{at_once} at once")
            total = max(100, at_once)
            seconds, each = load.run_at_once(ours, at_once, total)
            growth.append(
                {
                    "at_once": at_once,
                    "ms_each": seconds / total * 1000,
                    "p50_ms": each.p50 * 1000,
                    "per_second": total / seconds,
                }
            )
    ours_rate, bare_rate = (sorted(rates[name])[1] for name in ("fumehood", "bare"))
    found = {"at_once": AT_ONCE, "per_second": {"bare": bare_rate, "fumehood": ours_rate}, "growth": growth}
    return found, [Bar(f"{AT_ONCE} at once, per second of bare", ours_rate / bare_rate, 1.3, "×", at_least=True)]


def _memory(progress: Callable[[str], None]) -> tuple[dict[str, Any], list[Bar]]:
    found: dict[str, Any] = {}
    bars = []
    kinds: dict[str, tuple[list[str], float]] = {"plain": ([], 3.0)}
    if candidates.has_data_stack():
        kinds["data stack"] = (list(candidates.DATA_STACK), 5.0)
    for kind, (preload, limit) in kinds.items():
        progress(f"memory of a waiting cell, {kind}")
        with candidates.sealed(warm_cells=8, preload=preload, memory_mb=1000) as sandbox:
            load.throughput(candidates.execution(sandbox), 8, 32)  # a load for which it keeps eight
            measured = memory.of_a_waiting_cell(sandbox, 8)
        if measured is None:
            progress("  only root can look into a supervisor: skipped")
            continue
        found[kind] = {**measured, "cells_per_gib": _GIB / measured["pss"]}
        bars.append(Bar(f"a waiting cell's private memory, {kind}", measured["private_dirty"] / _MIB, limit, "MiB"))
    return found, bars


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
