"""The suite's own rules: expected skips, order, evidence and the fence can each fail a run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.skips import LIST, read
from support import HANG_S

TESTS = Path(__file__).parent
FENCED = TESTS.parent / "scripts" / "_fenced"
MODULE = """
import pytest
def test_a(): pass
def test_b(): pytest.skip("no reason that is listed")
def test_c(): pass
def test_d(): pass
"""


def run(place: Path, *plugins: str, workers: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest over the tests in a place, with these plugins of the harness."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir", place]
    command += ["-p", "xdist", "-n", str(workers)] if workers else []
    for plugin in plugins:
        command += ["-p", f"harness.{plugin}"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FUMEHOOD_", "PYTEST_", "COV_"))}
    return subprocess.run(
        [*command, place],
        cwd=place,
        env={**kept, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
        check=False,
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_a_skip_that_is_not_listed_fails_the_run(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_some.py").write_text(MODULE)
    done = run(tmp_path, "skips", workers=workers, FUMEHOOD_TEST_ENVIRONMENT="root")
    assert done.returncode == 1, done
    assert "not expected to be skipped: test_some.py::test_b: no reason that is listed" in done.stdout


@pytest.mark.parametrize("workers", [0, 1])
def test_a_module_that_is_skipped_whole_fails_the_run_too(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_some.py").write_text(MODULE.replace('pytest.skip("no reason that is listed")', "pass"))
    (tmp_path / "test_none.py").write_text("import pytest\npytest.importorskip('no_such_module', reason='needs it')\n")
    done = run(tmp_path, "skips", workers=workers, FUMEHOOD_TEST_ENVIRONMENT="root")
    assert done.returncode == 1, done
    assert "not expected to be skipped: test_none.py: needs it" in done.stdout


def test_a_listed_skip_that_ran_fails_the_run(tmp_path: Path) -> None:
    module = tmp_path / "tests" / "server" / "test_page.py"
    module.parent.mkdir(parents=True)
    module.write_text("import pytest\n@pytest.fixture\ndef docker_host(): pass\ndef test_it(docker_host): pass\n")
    for missing in ("chromium", "docker"):  # listed by its id, and by its fixture
        done = run(tmp_path, "skips", FUMEHOOD_TEST_ENVIRONMENT=f"no-{missing}")
        assert done.returncode == 1, done
        assert "expected to be skipped, but ran: tests/server/test_page.py::test_it" in done.stdout


def test_a_plain_run_is_not_held_to_the_list(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(MODULE)
    done = run(tmp_path, "skips")
    assert done.returncode == 0, done


def test_every_entry_of_the_list_names_tests_that_there_are() -> None:
    words = set(re.findall(r'"([a-z0-9-]+)"', " ".join(re.findall(r"where = \[(.*?)\]", LIST.read_text("utf-8")))))
    for entry in read(words):
        for pattern in entry.tests:
            top = re.split(r"[*?]", pattern)[0].partition("::")[0]
            assert (TESTS.parent / top).exists(), f"{pattern}: there is no {top}"
            assert entry.reason, pattern


def test_a_seed_gives_an_order_that_can_be_had_again(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(40))\ndef test(n): pass\n"
    )

    def order(**environment: str) -> list[str]:
        return re.findall(r"test\[(\d+)\] PASSED", run(tmp_path, "order", **environment).stdout)

    written = [str(number) for number in range(40)]
    assert order() == written
    once, again, other = (order(FUMEHOOD_TEST_SEED=seed) for seed in ("7", "7", "8"))
    assert once == again
    assert once not in (other, written)
    assert sorted(once) == sorted(written)


def test_a_failure_comes_with_what_explains_it(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import subprocess\n"
        "from fumehood.types import ExecutionResult\n"
        "def test_it():\n"
        "    ExecutionResult('what the program said', '', 1, 0.1, {})\n"
        "    subprocess.run(['sh', '-c', 'echo what the child said; exit 3'], check=True, capture_output=True)\n"
    )
    done = run(tmp_path, "evidence")
    assert done.returncode == 1, done
    for part in ("what the program said", "what the child said", "load ", '"level": ', "fumehood doctor --json"):
        assert part in done.stdout, part


# ---- the fence


def fenced(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FUMEHOOD_FENCE_GRACE_S": "1", "FUMEHOOD_TEST_DOCKER": ""}
    return subprocess.run(
        [sys.executable, FENCED, *command],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
        check=False,
    )


def test_the_fence_hands_the_exit_code_on() -> None:
    assert fenced("true").returncode == 0
    assert fenced("sh", "-c", "exit 7").returncode == 7


def test_a_process_that_stays_fails_the_run_and_is_ended(tmp_path: Path) -> None:
    done = fenced("sh", "-c", f"setsid sleep 3600 > /dev/null 2>&1 & echo $! > {tmp_path}/pid")
    assert done.returncode == 1, done
    assert "left behind: 1 processes" in done.stdout
    assert "sleep 3600" in done.stdout
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")


def test_a_temporary_file_that_stays_fails_the_run_and_is_removed() -> None:
    done = fenced("sh", "-c", 'touch "$TMPDIR/forgotten"; echo "$TMPDIR"')
    assert done.returncode == 1, done
    assert "left behind: 1 temporary files" in done.stdout
    assert not os.path.exists(done.stdout.splitlines()[0])


def test_no_more_processes_than_the_fence_allows() -> None:
    if not os.access("/sys/fs/cgroup/pids/cgroup.procs", os.W_OK):
        pytest.skip("no process cgroup of version 1 can be written here")
    command = "cat /sys/fs/cgroup/pids$(grep :pids: /proc/self/cgroup | cut -d: -f3)/pids.max"
    assert fenced("sh", "-c", command).stdout.strip() == "3000"
