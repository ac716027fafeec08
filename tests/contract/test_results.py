"""The shape of a result, and what is refused before anything runs: the same everywhere."""

from __future__ import annotations

import json
import math

import pytest

from fumehood import BadArgument, ConfigurationError, ExecutionResult, IsolationUnavailable, LanguageNotAllowed
from fumehood.types import AXES, LEVELS
from support import HANG_S


def test_a_result_has_every_documented_part(box):
    result = box.run("print('x')")
    assert isinstance(result, ExecutionResult)
    assert isinstance(result.stdout, str)
    assert isinstance(result.stderr, str)
    assert (result.exit_code, result.meta["reason"]) == (0, "ok")
    assert result.duration > 0
    assert result.meta["runtime"] == box.target.settings["type"]
    assert result.meta["truncated"] is result.meta["timed_out"] is False
    assert result.meta["blocked_imports"] == []
    assert result.meta["timeout"] == HANG_S
    json.dumps(result.meta)


def test_the_receipt_names_the_level_and_every_axis(box):
    isolation = box.run("").meta["isolation"]
    others = {"fake": "process", "docker": "sealed", "remote": "sealed"}
    assert isolation["level"] == others.get(box.target.level, box.target.level)
    assert set(isolation) == {"level", *AXES}
    for axis in AXES:
        assert isolation[axis]["level"] in ("none", *LEVELS)
        assert isolation[axis]["mechanism"]


def test_check_promises_what_an_execution_gives(box):
    assert box.sandbox.check().as_dict() == box.run("").meta["isolation"]


def test_limits_are_reported_as_they_were_set(box):
    limits = box(memory_mb=300, processes=50, disk_mb=20).run("").meta["resource_limits"]
    assert limits["memory_bytes"] == 300 * 1024 * 1024
    assert limits["processes"] == 50
    assert limits["disk_bytes"] == 20 * 1024 * 1024


def test_execution_ids_differ(box):
    assert box.run("").meta["execution_id"] != box.run("").meta["execution_id"]


def test_a_blocked_import_is_a_result_and_nothing_runs(box):
    result = box(block_dangerous_imports=True).run("import json\nimport subprocess\nprint('ran')")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.meta["reason"] == "blocked_import"
    assert result.meta["blocked_imports"] == ["subprocess"]
    assert "line 2" in result.stderr


def test_a_language_that_is_not_allowed_names_the_setting(box):
    with pytest.raises(LanguageNotAllowed, match="SANDBOX_SUPPORTED_LANGUAGES"):
        box.run("ls", "bash")


BAD_ARGUMENTS = [
    ({"timeout": 0}, "timeout"),
    ({"timeout": -5}, "timeout"),
    ({"timeout": math.nan}, "timeout"),
    ({"args": "x"}, "args"),
    ({"stdin": 1}, "stdin"),
    ({"env": {"A": 1}}, "env"),
    ({"files": {"../x": b""}}, "files"),
]


def test_a_bad_argument_is_refused_by_name(box):
    for named, what in BAD_ARGUMENTS:
        with pytest.raises(BadArgument, match=what):
            box.run("pass", **named)


def test_an_unknown_setting_is_refused_by_name(box):
    with pytest.raises(ConfigurationError, match="memory_mb"):
        box(memory_mbs=5)


def test_a_level_that_is_required_and_not_given_is_refused(box):
    if box.target.level in ("sealed", "docker", "remote"):
        assert box(require="sealed").run("").exit_code == 0
    else:
        with pytest.raises(IsolationUnavailable):
            box(require="sealed").run("")


def test_a_timeout_above_the_ceiling_is_lowered_and_said(box):
    meta = box(max_timeout_sec=40).run("", timeout=1000).meta
    assert (meta["timeout"], meta["timeout_clamped"]) == (40, True)
