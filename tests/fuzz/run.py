"""Fuzzes one target for a while: with atheris, which is led by coverage, where it is installed; else with hypothesis.

What fails is saved into the corpus, once for each place where it fails, and fuzzing goes on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

MAX_BYTES = 8192
SLOW_S = 20
_TELL_S = 60.0
_BATCH = 2000
CORPUS = Path(__file__).parent / "corpus"


class Watched:
    """A target's check that notes what fails rather than ending there."""

    def __init__(self, name: str, check: Callable[[bytes], None]) -> None:
        self.name, self._check = name, check
        self.count = 0
        self.found: set[tuple[object, ...]] = set()
        self._began = self._told = time.monotonic()

    def __call__(self, data: bytes) -> None:
        self.count += 1
        try:
            self._check(data)
        except Exception as error:
            self._note(data, error)
        if time.monotonic() - self._told > _TELL_S:
            self._told = time.monotonic()
            self.tell("so far")

    def tell(self, when: str) -> None:
        seconds = time.monotonic() - self._began
        print(f"{self.name}: {self.count:,} inputs in {seconds:.0f} s, {len(self.found)} defects {when}", flush=True)

    def _note(self, data: bytes, error: Exception) -> None:
        place = tuple((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)[-2:])
        if (type(error), place) in self.found:
            return
        self.found.add((type(error), place))
        path = CORPUS / self.name / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        print(f"{self.name}: {data[:200]!r} saved as {path}", flush=True)
        traceback.print_exception(error)


def main(name: str, seconds: int) -> int:
    began = time.monotonic()
    if importlib.util.find_spec("atheris") is not None:
        return _by_coverage(name, seconds)
    from .table import TARGETS

    watched = Watched(name, TARGETS[name].check)
    _by_strategy(watched, name, began + seconds)
    watched.tell("in all")
    return bool(watched.found)


def _by_strategy(watched: Watched, name: str, until: float) -> None:
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from .strategies import inputs
    from .table import TARGETS

    class Over(Exception):
        pass

    @settings(
        max_examples=_BATCH, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=HealthCheck
    )
    @given(inputs(TARGETS[name]))
    def feed(data: bytes) -> None:
        if time.monotonic() > until:
            raise Over
        watched(data)

    try:
        while True:
            seed(int.from_bytes(os.urandom(8)))(feed)()
    except Over:
        pass


def _by_coverage(name: str, seconds: int) -> int:
    import atheris

    with atheris.instrument_imports(include=["fumehood"]):
        from .table import TARGETS
    target = TARGETS[name]
    watched = Watched(name, target.check)
    with tempfile.TemporaryDirectory() as grown:
        child = os.fork()  # libFuzzer ends the process that it runs in
        if not child:
            limits = [
                f"-max_total_time={seconds + SLOW_S}",
                f"-max_len={MAX_BYTES}",
                f"-timeout={SLOW_S}",
                "-rss_limit_mb=4096",
            ]
            saved = [
                f"-artifact_prefix={CORPUS}/{name}/found-",
                f"-dict={target.dictionary}",
                "-verbosity=0",
                "-print_final_stats=0",
            ]
            atheris.Setup([sys.argv[0], *limits, *saved, grown, str(CORPUS / name)], watched)
            _at_the_end(watched, seconds)
            atheris.Fuzz()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _at_the_end(watched: Watched, seconds: int) -> None:
    """libFuzzer's own end gives us no chance to say what was found."""
    began = time.monotonic()
    check = watched._check

    def until_then(data: bytes) -> None:
        if time.monotonic() - began > seconds:
            watched.tell("in all")
            os._exit(bool(watched.found))
        check(data)

    watched._check = until_then


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
