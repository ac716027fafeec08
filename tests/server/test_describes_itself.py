"""OpenAPI, problems, metrics and traces."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from processes import LASTING, beneath

from fumehood import errors
from fumehood.server.problems import KINDS, from_error
from running import TOKENS, Running
from support import HANG_S, wait_until

Start = Callable[..., Running]


def test_the_description_is_valid_and_whole(alice: httpx2.Client) -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="needs openapi-spec-validator")
    found = alice.get("/openapi.json").json()
    validator.validate(found)
    assert {"/execute", "/sessions", "/healthz", "/readyz", "/metrics", "/openapi.json"} <= found["paths"].keys()
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            public = operation.get("security") == []
            opened = path == "/sessions/{id}/events"  # with a ticket
            assert public == (opened or path in ("/", "/healthz", "/readyz", "/assets/{name}")), path
            assert {"400", "403", "405", "500"} <= operation["responses"].keys()
            assert all("X-Request-Id" in each["headers"] for code, each in operation["responses"].items() if code > "2")
            assert public or "401" in operation["responses"]
            if "requestBody" in operation:
                kind = "application/json" if method == "post" else "application/octet-stream"
                assert "example" in operation["requestBody"]["content"][kind], path


def test_the_description_has_what_is_not_json_for_json(alice: httpx2.Client, session: str) -> None:
    """The WebSocket, ranges, the method that is not taken, and what stands in the headers."""
    paths = alice.get("/openapi.json").json()["paths"]
    opened = paths["/sessions/{id}/events"]["get"]
    assert {"101", "401", "404", "410", "421"} <= opened["responses"].keys()
    assert "ticket" in [each["name"] for each in opened["parameters"]]
    assert opened["x-websocket"]["receives"]["anyOf"]
    socket = f"/sessions/{session}/events"
    assert (alice.get(socket).status_code, "a ?ticket=" in alice.get(socket).text) == (400, True)
    refused = alice.post(socket)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    download = paths["/sessions/{id}/files/content"]["get"]
    assert {"name": "Range", "in": "header"}.items() <= download["parameters"][1].items()
    path = f"/sessions/{session}/files/content?path=/tmp/a"
    alice.put(path, content=b"abc", headers={"Content-Type": "application/octet-stream"})
    for given, status in (({}, "200"), ({"Range": "bytes=1-"}, "206"), ({"Range": "bytes=9-"}, "416")):
        found = alice.get(path, headers=given)
        assert str(found.status_code) == status
        _has_described(found, download)
    _has_described(alice.request("PATCH", path), download)
    _has_described(httpx2.get(alice.base_url.join("/info")), paths["/info"]["get"])


def _has_described(found: httpx2.Response, operation: dict[str, Any]) -> None:
    described = operation["responses"][str(found.status_code)]
    assert {name.lower() for name in described["headers"]} <= set(found.headers), found.status_code
    assert found.headers["content-type"].partition(";")[0] in described["content"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        *(({"code": "1"}, 200), ({"command": ["true"]}, 200), ({"code": "1", "command": None}, 200)),
        *(({}, 422), ({"code": "1", "command": ["true"]}, 422), ({"code": None, "command": None}, 422)),
    ],
)
def test_the_description_takes_exactly_one_of_code_and_command(
    alice: httpx2.Client, body: dict[str, Any], status: int
) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
    found = alice.get("/openapi.json").json()
    checker = jsonschema.Draft202012Validator({"$ref": "#/components/schemas/ExecuteRequest", **found})
    assert alice.post("/execute", json=body).status_code == status
    assert checker.is_valid(body) == (status == 200)


def test_the_description_has_the_types_of_meta(alice: httpx2.Client, session: str) -> None:
    """Every name that an answer has is there with its type."""
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
    found = alice.get("/openapi.json").json()
    described = found["components"]["schemas"]["ResultMeta"]
    checker = jsonschema.Draft202012Validator({"$ref": "#/components/schemas/ResultMeta", **found})
    wrote = "import os; os.makedirs('/tmp/output', exist_ok=True); open('/tmp/output/a\\nb', 'w')"
    answers = [
        alice.post("/execute", json={"code": wrote, "limits": {"memory_mb": 2**31 - 1}}),
        alice.post("/execute", json={"command": ["true"]}),
        alice.post(f"/sessions/{session}/run", json={"code": wrote}),
        alice.post(f"/sessions/{session}/exec", json={"command": ["false"]}),
    ]
    for answer in answers:
        meta = answer.json()["meta"]
        checker.validate(meta)
        assert meta.keys() <= described["properties"].keys()
        assert not checker.is_valid({**meta, "reason": "another"})


def test_examples_are_what_is_taken(alice: httpx2.Client) -> None:
    operation = alice.get("/openapi.json").json()["paths"]["/execute"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    example.pop("session_id", None)
    example.pop("requirements", None)  # needs an index
    assert alice.post("/execute", json=example).status_code == 200


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("/root/secret"), "internal"),
        (KeyError("/root/secret"), "internal"),
        (errors.EngineFailed("cannot open /root/secret"), "unavailable"),
        (errors.BackendUnavailable("no /root/secret"), "unavailable"),
        (errors.SandboxLost("/root/secret"), "sandbox_lost"),
        (errors.RecordsError("/root/secret"), "internal"),
        (errors.ConfigurationError("/root/secret"), "internal"),
        (errors.IsolationUnavailable("/root/secret", step="mount /root/secret"), "isolation_unavailable"),
        (errors.RuntimeMissing("/root/secret"), "language_not_allowed"),
    ],
)
def test_an_error_of_this_machine_tells_nothing_of_it(error: Exception, code: str) -> None:
    told = from_error(error)
    assert (told.code, told.status) == (code, KINDS[code][0])
    assert "secret" not in json.dumps(told.body("id"))


def test_every_error_of_ours_is_a_problem() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 15
    for kind in kinds:
        error = kind("text", "missing") if kind is errors.FileError else kind("text")
        assert from_error(error).code in KINDS


def test_a_failure_of_the_server_shows_no_trace(start: Start) -> None:
    running = start(env={"SANDBOX_STORE_CODE": "always"})
    records = running.directory / "artifacts"
    with running.client() as client:
        assert client.get("/history").status_code == 200
        records.mkdir(exist_ok=True)
        executions = records / "executions"
        if executions.exists():
            executions.rename(records / "moved")
        executions.write_text("no directory")
        found = client.get("/history")
    assert found.status_code in (500, 503)
    assert not re.search(r"Traceback|\.py|/tmp/|artifacts", found.text)


def test_numbers_are_of_what_was_done(alice: httpx2.Client) -> None:
    def number(line: str) -> float:
        found = re.search(rf"^{re.escape(line)} (\S+)$", alice.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    ended = 'fumehood_executions_total{reason="error",token="alice"}'
    used = 'fumehood_token_executions_total{token="alice"}'
    refused = 'fumehood_refused_total{code="not_found",token="alice"}'
    before = {line: number(line) for line in (ended, used, refused)}
    assert alice.post("/execute", json={"code": "1/0"}).status_code == 200
    assert alice.get("/nowhere").status_code == 404
    assert wait_until(lambda: all(number(line) >= value + 1 for line, value in before.items()))  # after the answer
    text = alice.get("/metrics").text
    assert "nowhere" not in text
    assert 'route="/execute"' in text


def test_a_refusal_by_the_library_is_logged_and_counted_by_its_code(server: Running, alice: httpx2.Client) -> None:
    def number(code: str) -> float:
        line = rf'^fumehood_refused_total{{code="{code}",token="alice"}} (\S+)$'
        found = re.search(line, alice.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    before = number("language_not_allowed")
    found = alice.post("/execute", json={"code": "1", "language": "cobol"})
    assert found.status_code == 403
    assert wait_until(lambda: number("language_not_allowed") == before + 1)
    assert wait_until(lambda: found.headers["x-request-id"] in server.log())
    lines = [line for line in server.lines() if line.get("request_id") == found.headers["x-request-id"]]
    assert len(lines) == 1
    assert (lines[0]["code"], lines[0]["level"]) == ("language_not_allowed", "info")
    assert "at" not in lines[0]  # it is nothing that went wrong here


def test_an_error_in_mid_stream_is_logged_and_counted_too(start: Start) -> None:
    running = start("--grace", "0.5")
    with running.client() as client:
        with client.stream("POST", "/execute", json=LASTING, headers={"Accept": "application/x-ndjson"}) as stream:
            for line in stream.iter_lines():
                if "here" in line:
                    running.process.terminate()
    assert running.process.wait(HANG_S) == 0
    asked = [line for line in running.lines() if line.get("path") == "/execute"]
    assert [(line["status"], line["code"], line["level"]) for line in asked] == [(200, "sandbox_lost", "warning")]


def test_why_a_sandbox_was_lost_is_in_the_log_and_not_in_the_answer(start: Start) -> None:
    running = start()
    with running.client() as client:
        session = client.post("/sessions", json={}).json()["session_id"]
        for each in beneath(running.process.pid):
            if each.pid != running.process.pid:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
        found = client.post(f"/sessions/{session}/run", json={"code": "1"})
    assert (found.status_code, found.json()["code"]) == (503, "sandbox_lost")
    assert wait_until(lambda: found.headers["x-request-id"] in running.log())
    line = next(line for line in running.lines() if line.get("request_id") == found.headers["x-request-id"])
    assert (line["error"], line["level"]) == ("SandboxLost", "warning")
    assert line["message"]
    assert line["message"] not in found.text


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Takes traces by OTLP over HTTP."""
    taken: list[bytes] = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Takes) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", taken
        listening.shutdown()
        thread.join()


def test_traces_go_where_the_variables_say(start: Start, collector: tuple[str, list[bytes]]) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra `otel`")
    url, taken = collector
    limits = {"OTEL_EXPORTER_OTLP_TIMEOUT": f"{HANG_S:g}", "OTEL_BSP_EXPORT_TIMEOUT": f"{HANG_S * 1000:.0f}"}
    running = start(env={"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "200", **limits})
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with running.client() as client:
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        assert client.post("/execute", json={"code": "print('canary-31415')"}, headers=headers).status_code == 200
    assert wait_until(lambda: b"POST /execute" in b"".join(taken))
    sent = b"".join(taken)
    assert bytes.fromhex(trace) in sent
    assert b"canary-31415" not in sent
    assert TOKENS["alice"].encode() not in sent
    assert running.stop() == 0


def test_a_collector_that_is_gone_does_not_keep_the_server_from_stopping(start: Start) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra `otel`")
    running = start(env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY": "3600000"})
    with running.client() as client:
        assert client.post("/execute", json={"code": "1"}).status_code == 200
    assert running.stop() == 0
    assert "did not take the last spans" in running.log()


@pytest.mark.parametrize(("policy", "status"), [("always", 503), ("on_error", 200)])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_records_that_could_not_be_stored_show(start: Start, policy: str, status: int, workers: str) -> None:
    """A file is where their directory must be: as on a full disk, no record can be written, whoever asks."""
    running = start("--workers", workers, env={"SANDBOX_STORE_CODE": policy})
    assert running.get("/readyz").json() == {"status": "ready"}
    records = running.directory / "artifacts"
    records.mkdir(exist_ok=True)
    (records / "executions").write_text("no directory")
    with running.client() as client:
        assert client.post("/execute", json={"code": "1/0"}).status_code == 200
    assert running.number("fumehood_records_lost") == 1
    for _ in range(1 if workers == "1" else 12):  # whichever worker answers
        found = running.get("/readyz")
        assert found.status_code == status
        assert "records: lost 1" in found.text
    (records / "executions").unlink()
    found = running.get("/readyz")
    assert (found.status_code, found.json()["warnings"]) == (200, ["records: lost 1 since the start"])
    assert (policy == "always") == (records / "executions").exists()


def test_records_lost_to_a_full_disk_are_counted(tmp_path: Path) -> None:
    """On a small file system, in a mount namespace of its own."""
    program = """
import os, sys
from pathlib import Path
from fumehood import records
store = records.Store(Path(sys.argv[1]) / "executions", policy="always")
assert store.save({"code": "a"}, failed=False) and not records.lost()
with open(Path(sys.argv[1]) / "filler", "wb", buffering=0) as filler:
    try:
        while filler.write(b"a" * 4096):
            pass
    except OSError:
        pass
assert store.save({"code": "b"}, failed=False) is None
assert (records.lost(), records.takes(store.directory)) == (1, False)
os.unlink(filler.name)
assert records.takes(store.directory) and store.save({"code": "c"}, failed=False)
assert records.lost() == 1 and records.verify(store.directory).ok
print("counted")
"""
    script = 'mount -t tmpfs -o size=512k none "$1" && exec "$2" -c "$3" "$1"'
    within = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mounted = [*within, 'mount -t tmpfs none "$1"', "sh", str(tmp_path)]
    if subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("needs a mount namespace with a file system of its own")
    ran = subprocess.run(
        [*within, script, "sh", str(tmp_path), sys.executable, program], capture_output=True, text=True
    )
    assert ran.stdout == "counted\n", ran.stderr
