"""Several workers behind one port: whichever answers, the answer is the server's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from websockets.sync.client import connect

from fumehood.errors import BadArgument
from fumehood.server import ids
from running import Running

Start = Callable[..., Running]
POD = "sandbox-server.7d9f8b6c5d-x2x7q." + "a" * 31  # as long as a pod's name may be


@pytest.mark.parametrize("name", ["a" * 64, "a/b", "..", ".a", "-a", "a_b", "a b", "é", ""])
def test_a_name_that_cannot_be_part_of_an_id_is_refused(name: str) -> None:
    with pytest.raises(BadArgument, match="1 to 63"):
        ids.checked(name)


def test_a_long_name_is_part_of_every_id_and_every_worker_knows_it(start: Start, tmp_path: Path) -> None:
    assert len(ids.checked(POD)) == ids.MAX_NAME
    deep = tmp_path / ("d" * 100)  # sockets have short paths, directories need not
    deep.mkdir()
    running = start("--workers", "2", "--instance", POD, env={"TMPDIR": str(deep)})
    seen = set()
    for _ in range(6):  # each over a connection of its own, which either may take
        with running.client() as client:
            seen.add(client.get("/info").json()["instance"])
            made = client.post("/sessions", json={}).json()["session_id"]
        with running.client() as client:
            assert client.get(f"/sessions/{made}").status_code == 200
            ticket = client.post(f"/sessions/{made}/ticket").json()["ticket"]
        with connect(f"{running.url.replace('http', 'ws')}/sessions/{made}/events?ticket={ticket}") as events:
            with running.client() as client:
                ran = client.post("/execute", json={"session_id": made, "code": "print(1)"})
                assert (ran.status_code, ran.json()["stdout"]) == (200, "1\n")
            assert json.loads(events.recv(timeout=30))["type"] == "started"
        with running.client() as client:
            assert client.delete(f"/sessions/{made}").status_code == 204
    assert seen <= {f"{POD}-0", f"{POD}-1"}


def test_the_handle_of_an_execution_is_known_to_every_worker(start: Start) -> None:
    running = start("--workers", "2", "--instance", POD)
    body, accept = {"code": "import time; time.sleep(60)", "timeout": 60}, {"Accept": "application/x-ndjson"}
    for _ in range(4):
        with running.client() as client, client.stream("POST", "/execute", json=body, headers=accept) as stream:
            lines = stream.iter_lines()
            handle = json.loads(next(lines))["handle"]
            with running.client() as other:
                assert other.post(f"/executions/{handle}/cancel").status_code == 202
            assert json.loads(list(lines)[-1])["meta"]["reason"] == "cancelled"
