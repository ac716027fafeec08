"""Timings and what can be said about them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Series:
    """Seconds that one thing took, again and again."""

    name: str
    seconds: list[float] = field(default_factory=list)

    def percentile(self, percent: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]

    @property
    def p50(self) -> float:
        return self.percentile(50)


@dataclass(frozen=True)
class Candidate:
    """Something that runs a small program and comes back with its output."""

    name: str
    call: Callable[[], None]


def interleave(
    candidates: Sequence[Candidate], rounds: int, progress: Callable[[int, int], None], pause_s: float = 0.0
) -> list[Series]:
    """Each in turn, round after round: what else the machine does meets all of them alike."""
    series = [Series(candidate.name) for candidate in candidates]
    for candidate in candidates:  # start what must start, load what must load
        candidate.call()
        candidate.call()
    for number in range(rounds):
        for candidate, samples in zip(candidates, series, strict=True):
            time.sleep(pause_s)
            started = time.perf_counter()
            candidate.call()
            samples.seconds.append(time.perf_counter() - started)
        progress(number + 1, rounds)
    return series
