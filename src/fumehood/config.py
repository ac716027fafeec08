"""Settings, from wherever they are set; `config_table` says how each is parsed, what may narrow it, what it means.

Only this module reads os.environ.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from . import config_values as v
from .config_files import read_env, read_yaml
from .config_table import DEFAULTS as DEFAULTS
from .config_table import EMPTY_MEANS_NONE, UNSHOWN, Field
from .config_table import FIELDS as FIELDS
from .config_table import Settings as Settings
from .errors import BadArgument, ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

PLANTABLE = "./fumehood.yaml"
_BY_NAME = {field.name: field for field in FIELDS}
_BY_ENV = {field.env_name: field for field in FIELDS}


class Loaded(NamedTuple):
    """The settings and where each came from."""

    settings: Settings
    origins: dict[str, str]


def load(
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    env_file: Path | None = None,
) -> Loaded:
    """Settings from, weakest first: defaults, the user's file, ./fumehood.yaml, environment, arguments."""
    if environ is None:
        environ = os.environ
    values = dict(DEFAULTS)
    origins = dict.fromkeys(values, "default")

    user_file = _user_file(environ)
    if user_file is not None:
        for field, value in _from_yaml(user_file, user_file, follow_symlinks=True):
            values[field.name], origins[field.name] = value, user_file

    # Code that ran here could have written this one, so it may narrow and never weaken.
    planted = "fumehood.yaml" if cwd is None else os.path.join(cwd, "fumehood.yaml")
    below = dict(values)
    for field, value in _from_yaml(planted, PLANTABLE, follow_symlinks=False):
        if value == below[field.name]:
            continue
        refusal = field.narrows(below[field.name], value, below)
        if refusal is not None:
            raise ConfigurationError(_weakens(field, value, below[field.name], origins[field.name], refusal, user_file))
        values[field.name], origins[field.name] = value, PLANTABLE

    if env_file is not None:
        _apply_environment(values, origins, read_env(os.fspath(env_file)), os.fspath(env_file))
    _apply_environment(values, origins, environ, "environment")
    return _finish(values, origins, overrides)


def with_overrides(loaded: Loaded, overrides: Mapping[str, object]) -> Loaded:
    """The same settings with some arguments on top."""
    values = {name: getattr(loaded.settings, name) for name in DEFAULTS}
    return _finish(values, dict(loaded.origins), overrides)


def narrowed(settings: Settings, asked: Mapping[str, object]) -> tuple[Settings, list[str]]:
    """The settings with what was asked for where that is stricter, and the names of those where it is not."""
    values = {name: _parsed(_BY_NAME[name], value, f"argument {name}") for name, value in asked.items()}
    below = settings._asdict()
    fresh = {name: value for name, value in values.items() if value != below[name]}
    cut = [name for name, value in fresh.items() if _BY_NAME[name].narrows(below[name], value, below) is not None]
    return settings._replace(**{name: value for name, value in fresh.items() if name not in cut}), cut


def server_token(environ: Mapping[str, str] | None = None) -> str | None:
    """The server's token, FUMEHOOD_TOKEN: no setting, since `config show` would print it."""
    return (os.environ if environ is None else environ).get("FUMEHOOD_TOKEN", "").strip() or None


def telemetry_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether one of OpenTelemetry's own variables says where traces go."""
    variables = os.environ if environ is None else environ
    named = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
    return variables.get("OTEL_SDK_DISABLED", "").lower() != "true" and any(variables.get(name) for name in named)


def rows(loaded: Loaded) -> list[tuple[str, str, str, str, str]]:
    """For `fumehood config show --origin`: name, environment name, value, origin, description."""
    settings, origins = loaded.settings, loaded.origins
    return [(f.name, f.env_name, v.written(getattr(settings, f.name)), origins[f.name], f.description) for f in FIELDS]


def clamp_timeout(timeout: float | None, settings: Settings) -> tuple[float, bool]:
    """Seconds for one execution, and whether more had been asked for than the ceiling."""
    if timeout is None:
        return settings.timeout_sec, False
    if isinstance(timeout, (bool, str, bytes)) or not (hasattr(timeout, "__float__") or hasattr(timeout, "__index__")):
        raise BadArgument(f"timeout must be a number of seconds, not {v.shown(timeout)}")
    try:
        seconds = float(timeout)
    except OverflowError:
        seconds = float("inf") if timeout > 0 else float("-inf")
    except (TypeError, ValueError):
        raise BadArgument(f"timeout must be a number of seconds, not {v.shown(timeout)}") from None
    if not seconds > 0:  # also NaN
        raise BadArgument(f"timeout must be more than 0 seconds, not {v.shown(timeout)}")
    if seconds > settings.max_timeout_sec:
        return settings.max_timeout_sec, True
    return seconds, False


def _finish(values: dict[str, Any], origins: dict[str, str], overrides: Mapping[str, object] | None) -> Loaded:
    for name, value in (overrides or {}).items():
        field = _BY_NAME.get(name)
        if field is None:
            raise ConfigurationError(_unknown(name, "argument", _BY_NAME))
        if value is not None:  # None: not given
            origin = f"argument {name}"
            values[name], origins[name] = _parsed(field, value, origin), origin
    if values["timeout_sec"] > values["max_timeout_sec"]:
        raise ConfigurationError(
            f"timeout_sec = {v.written(values['timeout_sec'])} (from {origins['timeout_sec']}) is more than "
            f"max_timeout_sec = {v.written(values['max_timeout_sec'])} (from {origins['max_timeout_sec']}). "
            "Lower SANDBOX_TIMEOUT_SEC or raise SANDBOX_MAX_TIMEOUT_SEC."
        )
    return Loaded(Settings(**values), origins)


def user_directory(variable: str, below_home: str, environ: Mapping[str, str] | None = None) -> str | None:
    """fumehood's part of one of the user's directories, such as ("XDG_CACHE_HOME", ".cache")."""
    base = users_own(variable, below_home, environ)
    return None if base is None else os.path.join(base, "fumehood")


def users_own(variable: str, below_home: str | None, environ: Mapping[str, str] | None = None) -> str | None:
    """A directory of the user's that other programs share."""
    if environ is None:
        environ = os.environ
    base = environ.get(variable, "")
    if os.path.isabs(base):  # the XDG specification: a relative one is to be ignored
        return base
    home = environ.get("HOME", "")
    return os.path.join(home, below_home) if below_home is not None and os.path.isabs(home) else None


def _user_file(environ: Mapping[str, str]) -> str | None:
    directory = user_directory("XDG_CONFIG_HOME", ".config", environ)
    return None if directory is None else os.path.join(directory, "config.yaml")


def _from_yaml(path: str, origin: str, *, follow_symlinks: bool) -> list[tuple[Field, Any]]:
    found: dict[str, tuple[Field, Any]] = {}
    for key, value in (read_yaml(path, origin, follow_symlinks=follow_symlinks) or {}).items():
        field = (_BY_NAME.get(key) or _BY_ENV.get(key)) if isinstance(key, str) else None
        if field is None:
            raise ConfigurationError(_unknown(key, origin, _BY_NAME))
        if field.name in found:
            raise ConfigurationError(f"{origin} sets {field.name} twice, once as {field.env_name}.")
        found[field.name] = field, _parsed(field, value, origin)
    return list(found.values())


def _apply_environment(
    values: dict[str, Any], origins: dict[str, str], environ: Mapping[str, str], source: str
) -> None:
    for name in environ:
        field = _BY_ENV.get(name)
        if field is None and not name.startswith("SANDBOX_"):
            continue
        text = environ[name]
        if not text.strip() and (field is None or field.name not in EMPTY_MEANS_NONE):  # counts as unset
            continue
        if field is None:
            raise ConfigurationError(_unknown(name, source, _BY_ENV))
        origin = f"{source} {name}"
        values[field.name], origins[field.name] = _parsed(field, text, origin), origin


def _parsed(field: Field, value: object, origin: str) -> Any:
    try:
        return field.parse(value)
    except ValueError as error:
        given = "" if field.name in UNSHOWN else f" = {v.shown(value)}"
        what = f"{field.name}{given} (from {origin})"
        raise ConfigurationError(f"{what} is not valid: expected {error}.") from None


def _unknown(name: object, origin: str, known: Mapping[str, Field]) -> str:
    close = v.close_match(name, known)
    hint = f" Did you mean {close}?" if close else ""
    return f"{v.shown(name)} (from {origin}) is not a setting of fumehood.{hint} `fumehood config show` lists them all."


def _weakens(field: Field, value: object, old: object, old_origin: str, refusal: str, user_file: str | None) -> str:
    elsewhere = f"in {user_file}, " if user_file else ""
    return (
        f"{PLANTABLE} may not change {field.name} from {v.written(old)} (from {old_origin}) "
        f"to {v.written(value)}: {refusal}. "
        "Code that ran in this directory could have written that file, so it may narrow settings, never weaken them. "
        f"Set it {elsewhere}as {field.env_name}, or as an argument."
    )
