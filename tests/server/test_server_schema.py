"""Requests made up from /openapi.json: no answer is a 5xx, and every one is described there."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis, which makes the requests up")
from schemathesis import GenerationMode  # noqa: E402 - after it is known to be there
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
EXAMPLES = 30  # of each operation, fit and unfit ones


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fit", "unfit"])
def test_every_answer_is_described_and_none_is_a_failure_of_the_server(server, alice, mode):
    schema = schemathesis.openapi.from_dict(alice.get("/openapi.json").json())
    session = alice.post("/sessions", json={}).json()["session_id"]
    seen: Counter[int] = Counter()
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 15
    for operation in operations:
        probe(operation, mode, server, session, seen)
    alice.delete(f"/sessions/{session}")
    assert seen.total() > 100
    assert seen[422] > 0
    assert mode is not GenerationMode.POSITIVE or seen[200] > 20


def probe(operation, mode, server, session, seen):
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        tame(case, session)
        reply = case.call(base_url=server.url, headers=dict(client.headers), timeout=30)
        seen[reply.status_code] += 1
        if reply.status_code == 201:
            client.delete(f"/sessions/{reply.json()['session_id']}")
        case.validate_response(reply, checks=CHECKS)

    with server.client() as client, suppress(Unsatisfiable):  # what takes nothing cannot be given anything unfit
        ask()


def tame(case, session):
    """Nothing is fetched from an index, no program runs for long, and the session stays."""
    if case.path_parameters and "id" in case.path_parameters and case.method != "DELETE":
        case.path_parameters["id"] = session
    if isinstance(case.body, dict):
        case.body.pop("requirements", None)
        timeout = case.body.get("timeout")
        if isinstance(timeout, (int, float)):
            case.body["timeout"] = min(timeout, 2.0)
