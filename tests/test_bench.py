"""The benchmark measures what it says and judges by it. How fast anything is, is not tested here."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from contextlib import ExitStack
from pathlib import Path

import pytest

from fumehood import config, get_sandbox
from fumehood.backends.base import SandboxSpec
from fumehood.backends.docker.body import create_body
from fumehood.bench import candidates, containers, served
from fumehood.bench import run as bench_run
from fumehood.bench.chart import draw
from fumehood.bench.load import run_at_once
from fumehood.bench.run import Bar
from fumehood.bench.samples import Candidate, Series, interleave
from fumehood.cli.main import main
from fumehood.errors import EngineFailed, IsolationUnavailable
from support import HANG_S


@pytest.fixture(autouse=True)
def _sealed() -> None:
    try:
        with get_sandbox(isolation="sealed", warm_cells=0) as sandbox:
            sandbox.check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no sealed sandbox on this machine: {missing}")


def test_percentiles_are_those_of_the_samples() -> None:
    series = Series("x", [float(number) for number in range(1, 101)])
    assert (series.p50, series.percentile(95), series.percentile(99), series.percentile(100)) == (50, 95, 99, 100)
    assert Series("one", [3.0]).percentile(99) == 3.0


def test_candidates_take_turns() -> None:
    order: list[str] = []
    pair = [Candidate(name, lambda name=name: order.append(name)) for name in "ab"]  # type: ignore[misc]
    series = interleave(pair, 3, lambda *_: None)
    assert "".join(order) == "aabb" + "ab" * 3
    assert [len(item.seconds) for item in series] == [3, 3]


def test_a_bar_knows_which_side_it_is_on() -> None:
    assert Bar("x", 0.5, 0.6, "×").holds
    assert not Bar("x", 0.7, 0.6, "×").holds
    assert Bar("x", 1.4, 1.3, "×", at_least=True).holds
    assert not Bar("x", 1.2, 1.3, "×", at_least=True).holds


def test_what_prints_something_else_is_not_measured() -> None:
    with ExitStack() as stack, pytest.raises(EngineFailed, match="printed"):
        candidates.ours(stack, "wrong", "print(41)", warm_cells=0).call()


def test_all_at_once_do_all_of_the_work() -> None:
    done: list[int] = []
    seconds, series = run_at_once(lambda: done.append(1), 4, 20)
    assert (len(done), len(series.seconds)) == (20, 20)
    assert seconds > 0


def test_an_error_in_one_of_many_is_not_swallowed() -> None:
    def fail() -> None:
        raise EngineFailed("no")

    with pytest.raises(EngineFailed):
        run_at_once(fail, 3, 10)


def test_docker_run_asks_for_what_the_backend_asks_for() -> None:
    settings = config.load({"type": "docker"}).settings
    limits = settings.in_container(settings.limits())
    flags = containers.docker_run(create_body(settings, SandboxSpec(limits, network=False), limits, 2))
    wanted = ("--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--user=1000:1000")
    assert set(wanted) <= set(flags)
    assert f"--memory={limits.memory_bytes}" in flags
    assert sum(flag.startswith("--tmpfs=") for flag in flags) == 4
    assert flags[-1] == settings.docker_image


def test_without_an_engine_the_containers_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
        patch.setenv("PATH", str(tmp_path))
        assert containers.measure(1, lambda *_: None, said.append) == []
    assert "Docker: skipped" in said[0]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_REPLY_S", HANG_S)


def _served() -> None:
    pytest.importorskip("uvicorn", reason="needs the extra `server`")


def test_the_server_is_measured_beside_the_api_with_one_client_and_with_many(monkeypatch: pytest.MonkeyPatch) -> None:
    _served()
    monkeypatch.setattr(served, "EACH", 2)
    said: list[str] = []
    series, found = served.measure(2, lambda *_: None, said.append, clients=5)
    assert [len(item.seconds) for item in series] == [2, 2, 2, 2, 2]
    assert {served.API, served.API_ASYNC, served.SERVED, served.NARROWED} < {item.name for item in series}
    assert (found["clients"], found["requests"], found["errors"]) == (5, 10, 0)
    assert found["per_second"] > 0
    assert found["cpu_ms_each"] >= 0  # by a clock that ticks a hundred times a second


class _Mixed(served.Server):
    """Client 1 gets what client 7 asked for."""

    def request(self, code: str, limits: dict[str, int] | None = None) -> bytes:
        return super().request(code.replace("print(1 *", "print(7 *"), limits)


def test_answers_that_are_not_those_to_a_clients_own_programs_are_errors() -> None:
    _served()
    with served.serving() as server:
        found = served.at_once(_Mixed(server.process, server.address, server.token), 3, 2)
        assert (found["requests"], found["errors"]) == (6, 2)
        assert "7000" in found["first_errors"][0]
        stranger = served.Server(server.process, server.address, "not-a-token-of-this-server")
        refused = served.at_once(stranger, 3, 2)
    assert refused["errors"] == 6
    assert "401" in refused["first_errors"][0]


def test_where_it_does_not_start_the_server_is_left_out_and_the_table_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDBOX_TIMEOUT", "soon")
        assert main(["bench", "--server", "--rounds", "1"]) == 0
    assert "server: skipped, " in capsys.readouterr().out


def test_the_chart_is_well_formed_and_shows_every_row() -> None:
    rows = [{"name": "bare <subprocess>", "p50_ms": 10.2}, {"name": "fumehood, warm cell", "p50_ms": 0.7}]
    text = draw(rows, "title & more")
    ElementTree.fromstring(text)
    for part in ("bare &lt;subprocess&gt;", "10.20 ms", "0.70 ms", "title &amp; more"):
        assert part in text


def test_the_command_prints_a_table_and_writes_the_samples_the_summaries_and_the_chart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_run, "FIRST_ROUNDS", 2)
    status = main(["bench", "--rounds", "3", "--save", str(tmp_path / "b.json"), "--chart", str(tmp_path / "b.svg")])
    printed = capsys.readouterr()
    outcome = json.loads((tmp_path / "b.json").read_text("utf-8"))
    names = {row["name"] for row in outcome["series"]}
    assert {candidates.BARE, candidates.COLD, candidates.WARM} <= names
    assert len(outcome["samples_s"][candidates.WARM]) == 3
    assert all(row["p50_ms"] > 0 for row in outcome["series"])
    assert outcome["machine"]["cores"] >= 1
    paused = {row["name"] for row in outcome["after_a_pause"]}
    assert {candidates.BARE, candidates.WARM, candidates.COMMAND, candidates.NEW_SESSION} <= paused
    assert len(outcome["samples_s"][f"{candidates.WARM}, after a pause"]) == 3
    promised = {bar["name"] for bar in outcome["bars"]}
    assert {f"{name}, after a pause" for name in promised} & promised
    assert all(bar["holds"] == (bar["value"] <= bar["limit"]) for bar in outcome["bars"])
    assert status == (0 if all(bar["holds"] for bar in outcome["bars"]) else 1)
    assert printed.out.count(candidates.COLD) == 2
    assert "promised" in printed.out
    assert "one after the other" in printed.err
    ElementTree.fromstring((tmp_path / "b.svg").read_text("utf-8"))
