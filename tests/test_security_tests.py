"""docs/security-tests.md against the tests that it is made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from harness import attack_page
from support import HANG_S

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "security-tests.md"


def test_the_page_lists_every_attack_that_the_suite_has(tmp_path: Path) -> None:
    """By name: what came of them is for scripts/security-tests, which runs them."""
    found = tmp_path / "attacks.json"
    collect = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "--attacks", found]
    subprocess.run(
        [*collect, "tests/escape", "tests/engine"], cwd=ROOT, check=True, capture_output=True, timeout=HANG_S
    )
    rows = json.loads(found.read_text("utf-8"))["rows"]
    named = {row["attack"] for row in rows}
    assert len(named) > 100
    listed = {line.split("(`")[1].split("`)")[0] for line in PAGE.read_text("utf-8").splitlines() if "(`" in line}
    assert named - listed == set(), "run scripts/security-tests"
    assert listed - named == set(), "run scripts/security-tests"
    assert [row["attack"] for row in rows if not _says_of_its_control(row)] == []


def _says_of_its_control(row: attack_page.Row) -> bool:
    is_one_of_a_corpus = row["attack"] != row["test"]  # all of which has its arms
    return is_one_of_a_corpus or bool(row["control"] or row["without"])


def _row(**changes: object) -> attack_page.Row:
    row = {
        "attack": "a",
        "title": "an attack",
        "by": "files",
        "test": "test_a",
        "file": "tests/engine/test_x.py",
        "control": None,
        "without": None,
        "wins": None,
        "status": "passed",
        "why": None,
        "levels": ["sealed"],
        "mechanisms": {},
        "outcomes": ["EPERM"],
        "won": False,
        "cannot_win": None,
        "control_passed": False,
    }
    return {**row, **changes}


def test_a_control_arm_is_yes_only_if_it_won() -> None:
    lost = [_row(), _row(test="test_b", wins=True, cannot_win="it needs root")]
    assert attack_page._control(lost) == "not possible here: it needs root"
    assert attack_page._control([_row(), _row(test="test_b", wins=True, won=True)]) == "yes"
    assert attack_page._control([_row(control="test_c", control_passed=True)]) == "yes, in `test_c`"
    assert attack_page._control([_row(control="test_c")]) == "not possible here: that of `test_c` did not win"
    assert attack_page._control([_row(status="failed", won=True)]).startswith("not possible here")


def test_no_mechanism_is_told_for_a_level_that_nobody_knows() -> None:
    receipts = {"sealed": {"files": "own root"}, "process": {"files": "a private directory"}}
    assert attack_page._held_by([_row()], receipts) == "own root"
    assert attack_page._held_by([_row(levels=["process"])], receipts) == "a private directory"
    assert attack_page._held_by([_row(levels=[])], receipts) == "what the receipt says of files"
    assert attack_page._held_by([_row(by="words")], receipts) == "words"
