"""A small validator of JSON schemas: the parts that tools use, with messages a model can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import BadArgument

_TYPES: dict[str, Any] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (Mapping,),
    "null": (type(None),),
}
_NAMES = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
    list: "an array",
    tuple: "an array",
    dict: "an object",
}


def check(tool: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Raise BadArgument that names the argument and what it takes."""
    properties: Mapping[str, Any] = schema["properties"]
    required: Sequence[str] = schema.get("required", ())
    takes = ", ".join(name if name in required else f"{name} (optional)" for name in properties) or "no arguments"
    for name in arguments:
        if name not in properties:
            raise BadArgument(f"{tool} has no argument {_shown(name)}; it takes {takes}")
    for name in required:
        if name not in arguments:
            raise BadArgument(f"{tool} needs the argument {name}: {described(properties[name])}; it takes {takes}")
    for name, value in arguments.items():
        check_value(name, value, properties[name])


def given(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without the optional ones that are null, which many a client sends for what is not given."""
    properties: Mapping[str, Any] = schema["properties"]
    optional = properties.keys() - set(schema.get("required", ()))
    return {
        name: value
        for name, value in arguments.items()
        if value is not None or name not in optional or _fits(name, None, properties[name])  # null can be a value
    }


def check_value(where: str, value: Any, schema: Mapping[str, Any]) -> None:
    """One value against its schema."""
    if "anyOf" in schema:
        if not any(_fits(where, value, option) for option in schema["anyOf"]):
            raise BadArgument(f"{where} must be {described(schema)}, not {_kind(value)}")
        return
    if "enum" in schema:
        if not any(value == choice and type(value) is type(choice) for choice in schema["enum"]):
            raise BadArgument(f"{where} must be {described(schema)}, not {_shown(value)}")
        return
    kind = schema.get("type")
    if kind is None:
        return
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise BadArgument(f"{where} must be {described(schema)}, not {_kind(value)}")
    if kind in ("integer", "number"):
        _check_range(where, value, schema)
    elif kind == "array":
        if len(value) < schema.get("minItems", 0):
            raise BadArgument(f"{where} must have at least {schema['minItems']} item, not {len(value)}")
        for position, item in enumerate(value):
            check_value(f"{where}[{position}]", item, schema.get("items", {}))
    elif kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        for key, item in value.items():
            check_value(f"{where}[{_shown(key)}]", item, schema["additionalProperties"])


def described(schema: Mapping[str, Any]) -> str:
    """What a value of that schema is, in words."""
    if "anyOf" in schema:
        return " or ".join(described(option) for option in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(map(_shown, schema["enum"]))
    kind = schema.get("type")
    if kind == "array":
        inner = schema.get("items", {}).get("type")
        return f"an array of {inner}s" if inner else "an array"
    if kind in ("integer", "number") and "exclusiveMinimum" in schema:
        return f"a number more than {schema['exclusiveMinimum']}"
    return {"null": "null", "integer": "an integer", "object": "an object", None: "any value"}.get(kind, f"a {kind}")


def _check_range(where: str, value: float, schema: Mapping[str, Any]) -> None:
    # Written so that NaN fails each of them.
    if "exclusiveMinimum" in schema and not value > schema["exclusiveMinimum"]:
        raise BadArgument(f"{where} must be more than {schema['exclusiveMinimum']}, not {_shown(value)}")
    if "minimum" in schema and not value >= schema["minimum"]:
        raise BadArgument(f"{where} must be at least {schema['minimum']}, not {_shown(value)}")
    if "maximum" in schema and not value <= schema["maximum"]:
        raise BadArgument(f"{where} must be at most {schema['maximum']}, not {_shown(value)}")


def _fits(where: str, value: Any, schema: Mapping[str, Any]) -> bool:
    try:
        check_value(where, value, schema)
    except BadArgument:
        return False
    return True


def _kind(value: Any) -> str:
    return _NAMES.get(type(value), type(value).__name__[:60])


def _shown(value: object) -> str:
    if isinstance(value, str):
        return ascii(value[:60])
    if isinstance(value, int) and abs(value) > 10**18:
        return "a huge number"
    return ascii(value)[:60] if isinstance(value, (int, float, type(None))) else _kind(value)
