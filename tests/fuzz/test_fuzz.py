"""Every parser of what a program, a model, a client or a server says takes anything: the corpus, and made-up inputs.

The same examples each time. `scripts/fuzz` looks for new ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .table import TARGETS
from .target import CORPUS, Target

SEEDS = [(target, path) for target in TARGETS.values() for path in target.seeds()]


@pytest.mark.parametrize(("target", "path"), SEEDS, ids=[f"{target.name}/{path.name}" for target, path in SEEDS])
def test_the_corpus_is_taken(target: Target, path: Path) -> None:
    target.check(path.read_bytes())


@pytest.mark.parametrize("count", [60, pytest.param(5_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_made_up_input_is_taken(target: Target, count: int) -> None:
    from hypothesis import HealthCheck, Phase, given, settings

    from .strategies import inputs

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(target))
    def check(data: bytes) -> None:
        target.check(data)

    check()


def test_every_corpus_has_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == TARGETS.keys()
