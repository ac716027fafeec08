"""Requests made up from /openapi.json: no answer is a 5xx, and every one is described there.

schemathesis and hypothesis take seconds to load: only who runs this loads them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest

from support import HANG_S


@pytest.mark.parametrize("examples", [8, pytest.param(300, marks=pytest.mark.soak)])  # of each operation and kind
def test_every_answer_is_described_and_none_is_a_failure_of_the_server(server, alice, examples):
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis, which makes the requests up")
    schema = schemathesis.openapi.from_dict(alice.get("/openapi.json").json())
    session = alice.post("/sessions", json={}).json()["session_id"]
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 15
    fit, unfit = (
        asked(operations, mode, server, session, examples)
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    )
    alice.delete(f"/sessions/{session}")
    assert min(fit.total(), unfit.total()) > 5 * len(operations)
    assert min(fit[422], unfit[422]) > 0
    assert fit[200] > 20


def asked(operations, mode, server, session, examples):
    """Every operation, so often; how often each status came."""
    from hypothesis.errors import Unsatisfiable

    seen = Counter()
    for operation in operations:
        with suppress(Unsatisfiable):  # what takes nothing cannot be given anything unfit
            probe(operation, mode, server, session, examples, seen)
    return seen


def probe(operation, mode, server, session, examples, seen):
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    conformance = (checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        tame(case, session)
        reply = case.call(base_url=server.url, headers=dict(client.headers), timeout=HANG_S)
        seen[reply.status_code] += 1
        if reply.status_code == 201:
            client.delete(f"/sessions/{reply.json()['session_id']}")
        case.validate_response(reply, checks=(not_a_server_error, *conformance))

    with server.client() as client:
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
