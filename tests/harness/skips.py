"""Holds the skips of a run against tests/expected_skips.toml: one that is not listed fails the run, and so does a
listed one that ran.

Each entry names tests (patterns of their ids, a fixture that they use), the words of the environments in which they
are skipped, and why. Where something without a word decides, such as the kernel, `depends_on` names it, and such tests
may run or be skipped. `scripts/test` says in FUMEHOOD_TEST_ENVIRONMENT which words hold here; a plain `pytest`, which
has none, is not held to the list.
"""

from __future__ import annotations

import os
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

LIST = Path(__file__).parents[1] / "expected_skips.toml"
SHOWN = 30


class Entry(NamedTuple):
    tests: tuple[str, ...]
    fixture: str | None
    where: tuple[str, ...]
    reason: str
    depends_on: str | None

    def covers(self, test: str, fixtures: frozenset[str]) -> bool:
        is_named = not self.tests or any(fnmatchcase(test, pattern) for pattern in self.tests)
        return is_named and (self.fixture is None or self.fixture in fixtures)


def read(environment: set[str], path: Path = LIST) -> list[Entry]:
    """The entries that hold in this environment: those all of whose words are in it."""
    found = tomllib.loads(path.read_text("utf-8"))["skip"]
    entries = [
        Entry(tuple(e.get("tests", ())), e.get("fixture"), tuple(e["where"]), e["reason"], e.get("depends_on"))
        for e in found
    ]
    return [entry for entry in entries if environment.issuperset(entry.where)]


class SkippedModules:
    """In a worker of xdist, which does not hand such reports on."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.found[report.nodeid] = _reason(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        session.config.workeroutput["skipped_modules"] = self.found  # type: ignore[attr-defined]


class Skips:
    """Watches a run, in the process that sees all reports."""

    def __init__(self, environment: set[str]) -> None:
        self.environment = environment
        self.entries = read(environment)
        self.skipped: dict[str, str] = {}
        self.ran: set[str] = set()
        self.fixtures: dict[str, frozenset[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.fixtures[report.nodeid] = frozenset(dict(report.user_properties).get("fixtures", ()))
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped[report.nodeid] = _reason(report)
        elif report.when == "call":
            self.ran.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped[report.nodeid] = _reason(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.skipped.update(getattr(node, "workeroutput", {}).get("skipped_modules", {}))

    def problems(self) -> list[str]:
        def is_listed(test: str, entries: list[Entry]) -> bool:
            return any(entry.covers(test, self.fixtures.get(test, frozenset())) for entry in entries)

        must = [entry for entry in self.entries if entry.depends_on is None]
        found = [
            f"not expected to be skipped: {test}: {why}"
            for test, why in self.skipped.items()
            if not is_listed(test, self.entries)
        ]
        ran = [test for test in sorted(self.ran) if is_listed(test, must)]
        return found + [f"expected to be skipped, but ran: {test}" for test in ran]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.problems() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        problems = self.problems()
        words = " ".join(sorted(self.environment))
        terminalreporter.write_line(f"skips: {len(self.skipped)}, {len(problems)} against {LIST.name} ({words})")
        for problem in problems[:SHOWN]:
            terminalreporter.write_line(f"  {problem}", red=True)
        if len(problems) > SHOWN:
            terminalreporter.write_line(f"  … and {len(problems) - SHOWN} more", red=True)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.user_properties.append(("fixtures", getattr(item, "fixturenames", [])))


def pytest_configure(config: pytest.Config) -> None:
    words = os.environ.get("FUMEHOOD_TEST_ENVIRONMENT", "").split()
    if words:
        is_worker = hasattr(config, "workerinput")
        config.pluginmanager.register(SkippedModules() if is_worker else Skips(set(words)))
