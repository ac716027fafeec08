"""What the attacks of a run came to: `--attacks FILE` writes it as JSON, of which `attack_page` makes a page.

A test of an attack carries the marker `attack(by, …)`:

by       what holds it: a line of the receipt, whose mechanism is then taken from the results of the test, or words
corpus   instead of it, where the parameter `name` chooses one attack of many: all of them
control  the test or the attack of a corpus that shows the same winning where nothing holds it; `itself` if it is this
without  why there is none
wins     this test is the control arm of its corpus
level    where neither a result nor a parameter tells
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fumehood.types import AXES, LEVELS, ExecutionResult

# What several tests say.
BY_DESCRIPTORS = "by descriptors, directory by directory: no link is followed, and every size is capped"
ORDERS_BY_SOCKET = "orders and reports over a socket that no program holds; a signal only wakes PID 1"
BOUNDED_FRAMES = "frames of one shape, capped in size, number and nesting; they decide only their own run"
OWN_CHANNEL = "the channel is ours: there is none outside"
THREE_PIPES = "three pipes and no other descriptor"
EXHAUSTS = "it would exhaust the machine"
FROM_BEHIND_THE_NAME = "fields of /proc are taken from behind the name"


class Known(NamedTuple):
    """One attack of a corpus."""

    title: str
    by: str


def known(item: pytest.Item) -> dict[str, Any] | None:
    """What the marker of a test says."""
    marker = item.get_closest_marker("attack")
    if marker is None:
        return None
    corpus: Mapping[str, Known] | None = marker.kwargs.get("corpus")
    test = _test_of(item)
    if corpus is None:
        title, key = test.removeprefix("test_").replace("_", " ").replace(" s ", "'s "), test
        (by,) = marker.args
    else:
        key = item.callspec.params["name"]  # type: ignore[attr-defined]
        title, by = corpus[key]
    said = {name: marker.kwargs.get(name) for name in ("control", "without", "wins")}
    said["control"] = test if said["control"] == "itself" else said["control"]
    return {"attack": key, "title": title, "by": by, "test": test, "file": item.nodeid.partition("::")[0], **said}


class Attacks:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._results: list[ExecutionResult] = []
        self._rows: list[dict[str, Any]] = []
        self._passed: set[str] = set()
        self._receipts: dict[str, dict[str, str]] = {}  # by level: the first that was seen
        ExecutionResult.__init__ = self._noted(ExecutionResult.__init__)  # type: ignore[method-assign]

    def _noted(self, make: Callable[..., None]) -> Callable[..., None]:
        def init(result: ExecutionResult, *args: Any, **named: Any) -> None:
            make(result, *args, **named)
            self._results.append(result)

        return init

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """The attacks and their control arms alone."""
        rows = [known(item) for item in items]
        controls = {row["control"] for row in rows if row is not None}
        chosen = [item for item, row in zip(items, rows, strict=True) if row is not None or _test_of(item) in controls]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            self._rows = [row for row in map(known, session.items) if row is not None]

    def pytest_runtest_setup(self) -> None:
        self._results.clear()
        _seen().clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" and report.passed:
            self._passed.add(_test_of(item))
        if (report.when == "call" or report.skipped) and (row := known(item)) is not None:
            why = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else None
            self._rows.append({**row, "status": report.outcome, "why": why, **self._found(row["by"], item)})
        del call
        return report

    def _found(self, by: str, item: pytest.Item) -> dict[str, Any]:
        receipts = [result.meta["isolation"] for result in self._results if "isolation" in result.meta]
        levels = {receipt["level"]: receipt for receipt in receipts if receipt["level"] != "none"}
        by_axis = by if by in AXES else None
        for level, receipt in levels.items():
            self._receipts.setdefault(level, {axis: receipt[axis]["mechanism"] for axis in AXES})
        seen = _seen()
        inside = [outcome for arm, outcome in seen if arm == "sandbox" and not outcome.won]
        outcomes = [outcome.errno_name if outcome.errno else "nothing won" for outcome in inside]
        return {
            "levels": sorted(levels) or _level(item),
            "mechanisms": {level: receipt[by_axis]["mechanism"] for level, receipt in levels.items() if by_axis},
            "outcomes": outcomes or self._ends(),
            "won": any(outcome.won for _, outcome in seen),
            "cannot_win": dict(item.user_properties).get("cannot_win"),
        }

    def _ends(self) -> list[str]:
        """How programs ended; those that ran beside the attack ended well."""
        ends = [f"{result.meta['reason']}, exit code {result.exit_code}" for result in self._results]
        return sorted({end for end in ends if not end.startswith("ok")}) or sorted(set(ends))

    def pytest_sessionfinish(self) -> None:
        shown = self._passed | {row["attack"] for row in self._rows if row.get("won")}
        for row in self._rows:
            row["control_passed"] = row["control"] in shown
        run = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
            "python": platform.python_version(),
            "user": "root" if os.geteuid() == 0 else "an ordinary user",
            "receipts": self._receipts,
            "rows": self._rows,
        }
        self._path.write_text(json.dumps(run, indent=1, default=str), "utf-8")


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[2].partition("[")[0]


def _level(item: pytest.Item) -> list[str]:
    """Of a test without a result: what its marker says, or a parameter or fixture."""
    marker = item.get_closest_marker("attack")
    if marker is not None and "level" in marker.kwargs:
        return [marker.kwargs["level"]]
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    if found := [value for value in values if isinstance(value, str) and value in LEVELS]:
        return found
    return ["sealed"] if "sealed" in getattr(item, "fixturenames", ()) else []


def _seen() -> list[Any]:
    arms = sys.modules.get("escape.arms")
    return [] if arms is None else arms.SEEN


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--attacks", type=Path, metavar="FILE", help="write what the attacks came to")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "attack(by, corpus, control, without, wins): see tests/harness/attacks.py")
    if (path := config.getoption("--attacks")) is not None:
        config.pluginmanager.register(Attacks(path.resolve()))
