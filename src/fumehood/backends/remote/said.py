"""What the server says, checked: receipts, limits, events. It is another machine, and may say anything."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args
from urllib.parse import quote

from ...errors import BackendUnavailable, SandboxLost
from ...one_line import printable
from ...types import AXES, LEVELS, Axis, Display, Exited, FileStat, Level, Limits, Output, Reason, Receipt
from ..base import Places, Ran

_SAID = "said by the server"
_MAX_TEXT = 500
_MAX_NUMBER = 1e15
_MAX_CODE = 2**31
_AXIS_LEVELS = ("none", *LEVELS)
_MAX_TEXTS = 1000
_MAX_NAME = 16 * 1024  # escapes make it longer than it is


def receipt(said: object) -> Receipt:
    """The server's, marked as such."""
    if not isinstance(said, dict) or said.get("level") not in LEVELS:
        raise BackendUnavailable("the server gave no receipt of what it enforces: use the same version on both sides")
    axes = {name: _axis(said[name]) for name in AXES if isinstance(said.get(name), dict)}
    return Receipt(cast("Level", said["level"]), axes)


def _axis(said: Mapping[str, Any]) -> Axis:
    level = said.get("level")
    texts = {name: _text(said[name]) for name in ("step", "errno", "fix") if isinstance(said.get(name), str)}
    known = cast("Literal['sealed', 'confined', 'process', 'none']", level if level in _AXIS_LEVELS else "none")
    return Axis(known, f"{_SAID}: {_text(said.get('mechanism', ''))}", **texts)


def output(said: Mapping[str, Any]) -> Output:
    stream, text = said.get("stream"), said.get("text")
    if stream not in ("stdout", "stderr"):
        raise _broken("an output of no stream")
    if isinstance(text, str):
        return Output(stream, text.encode("utf-8", "surrogatepass"))
    try:
        return Output(stream, base64.b64decode(said["base64"], validate=True))
    except (KeyError, TypeError, binascii.Error, ValueError):
        raise _broken("an output without bytes") from None


def display(said: Mapping[str, Any]) -> Display:
    data = said.get("data")
    if not isinstance(data, dict):
        raise _broken("a display without data")
    return Display(data)


def ending(said: Mapping[str, Any]) -> Exited:
    """Of a result."""
    meta, exit_code = _meta(said), said.get("exit_code")
    reason = meta.get("reason")
    if type(exit_code) is not int or abs(exit_code) >= _MAX_CODE or reason not in get_args(Reason):
        raise _broken("a result without an end")
    if nothing_ran(said):
        reason = "error"  # its stderr says why
    usage = meta.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    # A run in a new interpreter kept its own state: what was lost is what came before.
    lost = meta.get("state") == "lost" and not meta.get("began_anew")
    return Exited(
        exit_code,
        cast("Reason", reason),
        float(_number(usage.get("cpu_s"))),
        int(_number(usage.get("max_rss_bytes"))),
        lost,
    )


def nothing_ran(said: Mapping[str, Any]) -> bool:
    """The server's own policy turned it away."""
    isolation = _meta(said).get("isolation")
    return isinstance(isolation, dict) and isolation.get("level") == "none"


def began_anew(said: Mapping[str, Any]) -> bool:
    return _meta(said).get("began_anew") is True


def ran(said: Mapping[str, Any], asked: Limits) -> Ran:
    """With what limits, and what else is worth telling."""
    meta = _meta(said)
    held = meta.get("resource_limits")
    held = held if isinstance(held, dict) else {}
    named = {name: held[name] for name in Limits._fields if name != "cpu_s" and type(held.get(name)) is int}
    own = {"execution_id": _text(said.get("execution_id", ""))}
    timeout_s = _number(meta.get("timeout")) if meta.get("reason") == "timeout" else 0
    return Ran(asked._replace(**named), timeout_s or None, {**_told(meta), "remote": own})


def _told(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What the layer above cannot know."""
    told: dict[str, Any] = {}
    for name in ("packages", "limits_clamped", "blocked_imports"):
        if isinstance(given := meta.get(name), list) and given:
            told[name] = [_text(each) for each in given[:_MAX_TEXTS]]
    if isinstance(stamp := meta.get("fallback"), dict):
        told["fallback"] = {name: _text(stamp.get(name, "")) for name in ("from", "to", "reason")}
    if dropped := int(_number(meta.get("results_dropped"))):
        told["results_dropped"] = dropped
    return told


def protocol(info: Mapping[str, Any]) -> str:
    return _text(info["protocol"])[:20]


def most_bytes(info: Mapping[str, Any]) -> dict[str, int]:
    """Of a request's body, by content type."""
    limits = info.get("limits")
    limits = limits if isinstance(limits, dict) else {}
    named = (("application/json", "body_bytes"), ("application/octet-stream", "upload_bytes"))
    return {kind: limits[name] for kind, name in named if type(limits.get(name)) is int and limits[name] > 0}


def session_id(said: object) -> str:
    """Fit for a path."""
    found = said.get("session_id") if isinstance(said, dict) else None
    if not isinstance(found, str) or not found:
        raise _broken("a session without an id")
    return quote(found, safe="", errors="replace")


def places(said: object) -> Places:
    found = said.get("places") if isinstance(said, dict) else None
    if isinstance(found, dict):
        workspace, tmp = found.get("workspace"), found.get("tmp")
        if isinstance(workspace, str) and isinstance(tmp, str):
            return Places(workspace, tmp)
    raise _broken("a session without places")


def listing(said: Any, directory: str) -> list[FileStat]:
    try:
        found = [stat for stat in map(_stat, said["files"]) if printable(stat.path)]  # as in a sandbox of our own
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise _broken("a list of files that is none") from None
    return found + _others(said.get("left_out"), directory)


def left_out(said: Mapping[str, Any], directory: str) -> list[FileStat]:
    """What did not come with a result."""
    return _others(_meta(said).get("files_left_out"), directory)


def _others(said: object, directory: str) -> list[FileStat]:
    """Named by the server, whose last word may be about all the rest of that directory."""
    found = said[:_MAX_TEXTS] if isinstance(said, list) else []
    named = [
        (_text(each.get("path", ""), _MAX_NAME), _text(each.get("why", ""))) for each in found if isinstance(each, dict)
    ]
    return [FileStat(path if path.startswith("/") else directory, 0, (), why) for path, why in named if why]


def left(said: Mapping[str, Any]) -> dict[str, bytes]:
    """The files that came with a result, by path."""
    try:
        return {_path(file): base64.b64decode(file["content_base64"], validate=True) for file in said.get("files", ())}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _broken("files that are none") from None


def _stat(file: Mapping[str, Any]) -> FileStat:
    return FileStat(_path(file), int(file["size"]), tuple(map(int, file["version"].split("."))))


def _path(file: Mapping[str, Any]) -> str:
    path: str = file["path"]
    path.encode()  # without a lone surrogate
    return path


def _meta(said: Mapping[str, Any]) -> dict[str, Any]:
    meta = said.get("meta")
    if not isinstance(meta, dict):
        raise _broken("a result without meta")
    return meta


def _number(value: object) -> float:
    return value if isinstance(value, (int, float)) and 0 <= value < _MAX_NUMBER else 0


def _text(value: object, most: int = _MAX_TEXT) -> str:
    said = str(value) if isinstance(value, (str, int)) else ""  # of what is nested it could be too deep
    return "".join(ch if ch.isprintable() else " " for ch in said[:most])


def _broken(what: str) -> SandboxLost:
    return SandboxLost(f"the server sent {what}: use the same version of fumehood on both sides")
