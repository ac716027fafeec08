"""What a container says of itself before any program runs there; its image may be anybody's."""

from __future__ import annotations

import json

from fumehood.backends.base import SandboxSpec
from fumehood.backends.docker import receipt
from fumehood.backends.docker.body import create_body
from fumehood.backends.docker.container import parsed_hello
from fumehood.config_table import Settings
from fumehood.types import LEVELS

from .target import Target

_SETTINGS = Settings()
_LIMITS = _SETTINGS.limits()
_BODY = create_body(_SETTINGS, SandboxSpec(_LIMITS, False), _LIMITS, 2)


def check(data: bytes) -> None:
    hello = parsed_hello(data)
    if hello is not None:
        found = receipt.write(_BODY, {"HostConfig": _BODY["HostConfig"]}, hello)
        assert found.level in LEVELS
        assert json.dumps(found.as_dict())


TARGET = Target("container_hello", check, is_json=True)
