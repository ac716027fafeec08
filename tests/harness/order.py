"""FUMEHOOD_TEST_SEED=N shuffles the modules, and the tests within each; the seed stands in the summary."""

from __future__ import annotations

import os
import random

import pytest

SEED = os.environ.get("FUMEHOOD_TEST_SEED", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not SEED:
        return
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    shuffle = random.Random(SEED).shuffle
    groups = list(modules.values())
    shuffle(groups)
    for group in groups:
        shuffle(group)
    items[:] = [item for group in groups for item in group]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"order: FUMEHOOD_TEST_SEED={SEED}" if SEED else "order: as written")
