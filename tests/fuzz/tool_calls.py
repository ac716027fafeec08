"""What a model calls, and the commands, environments and files that a caller gives a program."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from fumehood import arguments, config, policy
from fumehood.config_table import Settings
from fumehood.errors import FumehoodError
from fumehood.tools import Toolbox, toolbox
from fumehood.tools.table import TABLE

from .target import Target, text

_LIMITS = Settings().limits()
_ALLOWED = ("python", "ls -l *", "git log **", "/opt/tool")


def check(data: bytes) -> None:
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        given = text(data)
    for take in (
        lambda: policy.check_command(arguments.command_strings(given), _ALLOWED, {}),
        lambda: policy.check_command(("ls",), _ALLOWED, arguments.env_strings(given)),
        lambda: arguments.arg_strings(given),
        lambda: arguments.file_bytes(given, "main.py", _LIMITS),
        lambda: arguments.code_bytes(given, _LIMITS),
        lambda: arguments.stdin_bytes(given),
        lambda: config.clamp_timeout(given, Settings()),
    ):
        with suppress(FumehoodError):
            take()
    _call(given, text(data))


def _call(given: Any, raw: str) -> None:
    """`call` gives a reply whatever happens, and logs an error where it is our own fault."""
    with (
        Toolbox(type="fake", allowed_packages="none", tools_dir=None) as tools,
        patch.object(toolbox._log, "error") as fault,
    ):
        for tool in TABLE:
            for said in (given, raw):
                reply = tools.call(tool.name, said)
                assert json.dumps(reply)
        tools.call(given, raw)
    assert not fault.called, fault.call_args


TARGET = Target("tool_calls", check, is_json=True)
