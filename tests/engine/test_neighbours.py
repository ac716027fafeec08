"""Two of us in one place: a second fumehood in a pid namespace of its own, where the first one's number is nobody's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from process_view import groups

from fumehood import get_sandbox, open_session
from fumehood.engine import private
from fumehood.engine.engine import Engine
from fumehood.errors import IsolationUnavailable
from fumehood.types import Command, Limits
from support import HANG_S

Elsewhere = Callable[[str, str], str]
RUNS = """
import fumehood
print(fumehood.get_sandbox(isolation='confined', store_code='never').execute('print(1)').stdout)
"""
DIES = """
import fumehood, os
session = fumehood.open_session(isolation='confined', store_code='never')
print(session.run('1').exit_code, flush=True)
os._exit(0)
"""


@pytest.fixture
def place(public_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, ours and the neighbour's."""
    public_path.chmod(0o1777)
    monkeypatch.setattr(private.tempfile, "tempdir", str(public_path))
    return public_path


@pytest.mark.parametrize("level", ["confined", "process"])
def test_a_neighbour_leaves_the_files_of_a_session_that_lives(level: str, place: Path, elsewhere: Elsewhere) -> None:
    left = place / "fumehood-1-left"
    with open_session(isolation=level, store_code="never", warm_cells=0, timeout_sec=HANG_S) as session:
        assert session.run("open('kept', 'w').write('kept'); x = 1").exit_code == 0
        before = set(place.iterdir())
        left.mkdir()
        assert elsewhere(RUNS, str(place)) == "1\n\n"
        assert not left.exists(), "it did not sweep"
        assert set(place.iterdir()) == before
        assert session.run("print(open('kept').read(), x)").stdout == "kept 1\n"
    assert not list(place.iterdir())


def test_what_a_neighbour_of_the_same_number_left_is_swept(place: Path, elsewhere: Elsewhere) -> None:
    """A container that is started again is number 1 again."""
    assert elsewhere(DIES, str(place)) == "0\n"
    assert [path.name.startswith("fumehood-1-") for path in place.iterdir()] == [True]
    assert elsewhere(RUNS, str(place)) == "1\n\n"
    assert not list(place.iterdir())


def test_a_neighbour_leaves_the_control_groups_that_others_use(place: Path, elsewhere: Elsewhere) -> None:
    with get_sandbox(store_code="never", timeout_sec=HANG_S, warm_cells=0) as sandbox:
        assert sandbox.execute("print(1)").stdout == "1\n"
        ours = {path for group in groups() for path in group.paths.values()}
        if not ours:
            pytest.skip("no control groups can be made here")
        assert elsewhere(RUNS, str(place)) == "1\n\n"
        assert all(map(os.path.isdir, ours))
        assert sandbox.execute("print(2)").stdout == "2\n"


@pytest.mark.parametrize("what", ["groups", "all"])
def test_groups_that_somebody_removed_are_made_again(what: str) -> None:
    engine = Engine("sealed", None)
    try:
        receipt = engine.check(Limits(), network=False)
    except IsolationUnavailable as missing:
        pytest.skip(str(missing))
    assert receipt.level == "sealed"
    root = next(iter(engine._roots.values()))
    try:
        ours = [path for group in root.zygote.groups._groups for path in set(group.paths.values())]
        if not ours:
            pytest.skip("no control groups can be made here")
        for group in root.zygote.groups._groups:
            assert group.is_free(HANG_S)
        for path in [*ours, *({os.path.dirname(path) for path in ours} if what == "all" else ())]:
            os.rmdir(path)
        cell = engine.start(Command(("python", "main.py"), b"print(2)"), Limits(), network=False)
        event = cell.read(HANG_S)
        assert getattr(event, "data", None) == b"2\n", event
        cell.close()
        assert next(iter(engine._roots.values())) is root, "no session is lost"
    finally:
        root.close()
