"""One tool as the three kinds of client want to be told of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BadArgument
from .table import Tool

FORMATS = ("openai", "anthropic", "mcp")


def spec(tool: Tool, format: str, words: Mapping[str, str], *, network: bool | None) -> dict[str, Any]:  # noqa: A002
    """The entry of `tool` in a request's list of tools, or in the answer to `tools/list`."""
    fill = _filled if tool.template else _as_it_is
    described = {"name": tool.name, "description": fill(tool.description, words)}
    parameters = fill(tool.schema, words)
    if format == "openai":  # the Responses API; optional arguments rule out strict
        return {"type": "function", **described, "parameters": parameters, "strict": False}
    if format == "anthropic":
        return {**described, "input_schema": parameters}
    if format == "mcp":
        hints = {"readOnlyHint": False, "destructiveHint": tool.destructive, "openWorldHint": network is not False}
        return {**described, "title": tool.title, "inputSchema": parameters, "annotations": hints}
    raise BadArgument(f"specs are for one of {', '.join(FORMATS)}, not {format!r}")


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return " ".join(value.format_map(words).split())
    if isinstance(value, Mapping):
        return {key: _filled(item, words) for key, item in value.items()}
    return [_filled(item, words) for item in value] if isinstance(value, (list, tuple)) else value


def _as_it_is(value: Any, _: Mapping[str, str]) -> Any:
    return value
