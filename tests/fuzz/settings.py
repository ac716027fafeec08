"""./fumehood.yaml, which a program that ran there could have written; and settings from anywhere."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from fumehood import config
from fumehood.config_table import FIELDS
from fumehood.errors import ConfigurationError

from .target import Target, fields, text

_SECRETS = ("remote_token",)


def check(data: bytes) -> None:
    """A YAML file; then one value, which each setting is given as text and, where it is JSON, as what that says."""
    planted, value = fields(data, 2)
    with tempfile.TemporaryDirectory() as place:
        for name, load in (("fumehood.yaml", _planted), ("env", _env_file)):
            Path(place, name).write_bytes(planted)
            try:
                load(place)
            except ConfigurationError:
                pass
    for given in _values(value):
        for field in FIELDS:
            try:
                parsed = field.parse(given)
            except ValueError:
                continue
            if field.name not in _SECRETS:
                assert field.parse(parsed) == parsed


def _planted(place: str) -> None:
    config.load(environ={"HOME": place}, cwd=Path(place))


def _env_file(place: str) -> None:
    os.remove(f"{place}/fumehood.yaml")
    config.load(environ={"HOME": place}, cwd=Path(place), env_file=Path(place, "env"))


def _values(data: bytes) -> list[object]:
    found: list[object] = [text(data)]
    try:
        found.append(json.loads(data))
    except (ValueError, RecursionError):
        pass
    return found


TARGET = Target("settings", check)
