"""Many at once: how much gets done, and what one more costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .samples import Series


def throughput(call: Callable[[], None], at_once: int, total: int) -> float:
    """Executions per second with `at_once` of them in flight."""
    return total / run_at_once(call, at_once, total)[0]


def run_at_once(call: Callable[[], None], at_once: int, total: int) -> tuple[float, Series]:
    """Seconds for all, and for each."""
    series = Series(f"{at_once} at once")
    left = iter(range(total))
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work() -> None:
        while True:
            with lock:
                if errors or next(left, None) is None:
                    return
            started = time.perf_counter()
            try:
                call()
            except BaseException as error:
                errors.append(error)
                return
            elapsed = time.perf_counter() - started
            with lock:
                series.seconds.append(elapsed)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - started, series
