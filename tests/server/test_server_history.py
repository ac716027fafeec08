"""History and info, against a real server."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fumehood import records
from fumehood.server import history
from fumehood.server.problems import Problem
from fumehood.server.sandboxes import label
from fumehood.server.tokens import Token
from support import HANG_S, wait_until


def test_history_has_the_newest_first_and_goes_on_before_one(dave):
    made = [dave.post("/execute", json={"code": f"print({number})"}).json()["execution_id"] for number in range(3)]
    listed = dave.get("/history", params={"limit": 2}).json()
    assert [entry["execution_id"] for entry in listed] == made[:0:-1]
    assert listed[0].keys() == {
        *("execution_id", "time", "kind", "language", "title", "exit_code", "reason", "duration", "level", "session_id")
    }
    older = dave.get("/history", params={"limit": 1, "before": made[1]}).json()
    assert [entry["execution_id"] for entry in older] == [made[0]]


def test_a_record_is_whole_and_has_its_receipt(alice, session):
    ran = alice.post(f"/sessions/{session}/run", json={"code": "1/0"}).json()
    found = alice.get(f"/history/{ran['execution_id']}").json()
    assert found["code"] == "1/0"
    assert found["session_id"] == session
    assert found["result"]["meta"]["isolation"] == ran["meta"]["isolation"]
    entry = next(e for e in alice.get("/history").json() if e["execution_id"] == ran["execution_id"])
    assert (entry["session_id"], entry["kind"], entry["reason"]) == (session, "run", "error")


def test_a_token_sees_only_its_own(alice, bob):
    hers = alice.post("/execute", json={"code": "print('hers')"}).json()["execution_id"]
    his = bob.post("/execute", json={"code": "print('his')"}).json()["execution_id"]
    assert bob.get(f"/history/{hers}").status_code == 404
    assert hers not in bob.get("/history").text
    assert alice.get(f"/history/{his}").status_code == 404
    assert bob.get(f"/history/{his}").json()["code"] == "print('his')"


def test_an_id_is_whole_or_nothing(alice):
    made = alice.post("/execute", json={"code": "1"}).json()["execution_id"]
    for wrong in (made[:10], made[:-1], made + "0", "%2e%2e", "0" * 22, "*"):
        assert alice.get(f"/history/{wrong}").status_code in (404, 400), wrong


def test_a_secret_in_the_environment_is_not_in_the_record(alice):
    body = {"code": "import os; print(os.environ['API_TOKEN'])", "env": {"API_TOKEN": "very-secret-value-123"}}
    ran = alice.post("/execute", json=body).json()
    assert ran["stdout"] == "very-secret-value-123\n"
    assert "very-secret-value-123" not in alice.get(f"/history/{ran['execution_id']}").text


def test_info_says_what_there_is(alice):
    found = alice.get("/info").json()
    assert found["protocol"] == 1
    assert found["backend"] == "local"
    assert found["level"] == found["receipt"]["level"]
    assert found["limits"]["timeout_s"] == HANG_S
    assert found["languages"] == ["python"]
    assert found["network"] is False


def stored(directory: Path, number: int, first: int = 0) -> list[str]:
    """So many records, one in each tenth of them alice's and the others another token's; the ids of hers."""
    store = records.Store(directory, policy="always")
    every = number // 10
    for each in range(first, first + number):
        name = "alice" if each % every == 0 else "bob"
        record = {"execution_id": f"{each:022x}", "run_id": f"{name}-0123456789abcdef", "code": str(each)}
        assert store.save({**record, "result": {"exit_code": 0}}, failed=False)
    return [f"{each:022x}" for each in range(first + number - every, first - 1, -every)]


@pytest.fixture
def index(tmp_path: Path) -> history.Index:
    return history.Index(SimpleNamespace(settings=SimpleNamespace(artifacts_dir=str(tmp_path))))


ALICE, BOB = Token("alice", b"a" * 32), Token("bob", b"b" * 32)


def newest(index: history.Index, limit: int, before: str | None) -> list[Any]:
    return index.newest(ALICE, limit, before, history.Search())


def one(index: history.Index, execution_id: str) -> dict[str, Any] | None:
    return index.one(ALICE, execution_id, history.Search())


def ids(entries: list[Any]) -> list[str]:
    return [entry.execution_id for entry in entries]


def test_each_record_is_looked_at_once(index: history.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hers = stored(tmp_path / "executions", 100)
    monkeypatch.setattr(history, "SEARCH_S", HANG_S)
    looked, run_of, read, read_entry = [], history.run_of, [], history.files.read_entry
    monkeypatch.setattr(history, "run_of", lambda *args: looked.append(args[1]) or run_of(*args))
    monkeypatch.setattr(history.files, "read_entry", lambda *args: read.append(args[1]) or read_entry(*args))
    assert ids(newest(index, 200, None)) == hers
    assert (len(looked), len(set(looked))) == (100, 100)
    assert (len(read), len(set(read))) == (10, 10)  # hers alone are read whole
    assert ids(newest(index, 200, None)) == hers
    assert one(index, "f" * 22) is None
    assert one(index, f"{99:022x}") is None  # bob's
    assert (len(looked), len(read)) == (100, 10)
    found = one(index, hers[-1])
    assert found is not None
    assert found["code"] == "0"


def test_a_short_page_is_all_there_is(index: history.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that has no time to look at enough is refused, and the next one goes on from there."""
    hers = stored(tmp_path / "executions", 100)
    monkeypatch.setattr(history, "SEARCH_S", 0.0)
    pages, refused = [], []
    while not pages:
        try:
            pages.append(ids(newest(index, 200, None)))
        except Problem as problem:
            refused.append((problem.status, problem.headers))
    assert pages == [hers]
    assert len(refused) > 1
    assert set(map(str, refused)) == {str((503, {"Retry-After": "1"}))}
    monkeypatch.setattr(history, "SEARCH_S", HANG_S)
    later = stored(tmp_path / "executions", 10, first=100)
    assert ids(newest(index, 200, None)) == later + hers
    (tmp_path / "executions" / records.files.names(os.open(tmp_path / "executions", os.O_RDONLY))[0][0]).unlink()
    assert ids(newest(index, 200, None)) == later + hers[:-1]


def test_what_began_first_and_ended_last_is_on_one_page(index: history.Index, tmp_path: Path) -> None:
    """Ids are of the beginning, and records are in the order of the ends."""
    store = records.Store(tmp_path / "executions", policy="always")
    for each in (5, 1, 4, 2, 3):
        record = {"execution_id": f"{each:022x}", "run_id": "alice-0123456789abcdef"}
        assert store.save({**record, "result": {"exit_code": 0}}, failed=False)
    page: list[str] = []
    for _ in range(5):
        page += ids(newest(index, 1, page[-1] if page else None))
    assert [int(each, 16) for each in page] == [3, 2, 4, 1, 5]
    assert newest(index, 1, page[-1]) == []


def test_nobody_gets_another_owners_record_by_what_a_program_printed(index: history.Index, tmp_path: Path) -> None:
    store = records.Store(tmp_path / "executions", policy="always")
    lie = '"run_id":"alice-0123456789abcdef"'
    for whose in ({"run_id": "bob-0123456789abcdef"}, {"run_id": None}, {"run_id": "bob"}, {}):
        result = {"exit_code": 0, "stdout": lie, "meta": {"run_id": "alice-0123456789abcdef"}}
        record = {"execution_id": f"{1:022x}", **whose, "code": lie, "step": lie, "result": result}
        assert store.save(record, failed=False)
    assert newest(index, 10, None) == []
    assert one(index, f"{1:022x}") is None


def test_a_record_that_cannot_be_read_for_a_moment_is_read_later(
    index: history.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hers = stored(tmp_path / "executions", 10)
    with monkeypatch.context() as patched:
        patched.setattr(history.files, "tail", lambda *_: (_ for _ in ()).throw(OSError(errno.EMFILE, "too many")))
        assert newest(index, 20, None) == []
    assert ids(newest(index, 20, None)) == hers


def test_a_record_that_somebody_has_changed_hides_no_other(index: history.Index, tmp_path: Path) -> None:
    hers = stored(tmp_path / "executions", 20)
    (name,) = (path for path in (tmp_path / "executions").iterdir() if f'"{hers[0]}"'.encode() in path.read_bytes())
    name.write_bytes(name.read_bytes().replace(b'"code":"', b'"command":5,"code":"'))
    assert ids(newest(index, 20, None)) == hers[1:]


def test_no_name_stands_for_another_one() -> None:
    hashed = label(Token("team one", b""))
    assert label(Token(hashed, b"")) != hashed


def test_a_search_of_one_owner_holds_up_no_other_and_ends_when_nobody_waits(
    index: history.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "executions", 20)
    begun, ended = threading.Event(), threading.Event()

    def endless(search: history.Search) -> None:
        begun.set()
        while not search.is_left:
            time.sleep(0.001)
        ended.set()

    async def ask() -> None:
        hers = [asyncio.create_task(index.search(ALICE, endless)) for _ in range(50)]
        while not begun.is_set():
            await asyncio.sleep(0.001)
        assert await index.search(BOB, lambda search: len(index.newest(BOB, 20, None, search))) == 10
        for task in hers:
            task.cancel()
        await asyncio.wait(hers)
        assert ended.is_set()
        assert await index.search(ALICE, lambda search: len(index.newest(ALICE, 20, None, search))) == 10

    monkeypatch.setattr(history, "SEARCH_S", HANG_S)
    asyncio.run(asyncio.wait_for(ask(), HANG_S))


def test_a_search_for_one_record_has_an_end(index: history.Index, tmp_path: Path, monkeypatch: Any) -> None:
    """Whatever the records have in them."""
    stored(tmp_path / "executions", 100)
    newest(index, 20, None)  # all of them were seen
    monkeypatch.setattr(history, "SEARCH_S", 0.0)
    for look in (lambda: one(index, f"{0xFFF:022x}"), lambda: newest(index, 20, f"{0xFFF:022x}")):
        with pytest.raises(Problem) as refused:
            look()
        assert refused.value.status == 503


@pytest.mark.parametrize("number", [1000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_records_of_another_owner_hide_none(start, number):
    server = start(env={"SANDBOX_STORE_CODE": "always"})
    hers = stored(server.directory / "artifacts" / "executions", number)
    with server.client() as client:
        assert wait_until(lambda: client.get("/history", params={"limit": 200}).status_code == 200)
        listed = client.get("/history", params={"limit": 200}).json()
        assert [entry["execution_id"] for entry in listed] == hers
        assert client.get(f"/history/{hers[-1]}").json()["code"] == "0"
        assert client.get(f"/history/{'f' * 22}").status_code == 404
        made = client.post("/execute", json={"code": "1"}).json()["execution_id"]
        assert client.get("/history", params={"limit": 1}).json()[0]["execution_id"] == made
