"""Settings: one table says how each is parsed, what may narrow it and what it means.

Only this module reads os.environ, and only in `load` and `users_own`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from . import config_values as v
from .config_files import read_env, read_yaml
from .errors import BadArgument, ConfigurationError
from .types import LEVELS, Limits

if TYPE_CHECKING:
    from pathlib import Path

_MIB = 1024 * 1024
_WEEK_S = 7 * 24 * 3600
_BUSY = ("queue", "refuse")
_STORE_CODE = ("never", "on_error", "always")
DEFAULT_COMMANDS = (
    *("python", "python3", "sh", "bash"),
    *(
        "awk",
        "basename",
        "bc",
        "cat",
        "chmod",
        "cmp",
        "comm",
        "cp",
        "csplit",
        "cut",
        "date",
        "df",
        "diff",
        "dirname",
        "du",
    ),
    *("echo", "env", "expand", "expr", "false", "file", "find", "fold", "grep", "gunzip", "gzip", "head", "join", "ln"),
    *("ls", "md5sum", "mkdir", "mktemp", "mv", "nl", "od", "paste", "printf", "pwd", "readlink", "realpath", "rm"),
    *("rmdir", "sed", "seq", "sha256sum", "shuf", "sleep", "sort", "split", "stat", "strings", "tac", "tail", "tar"),
    *("tee", "test", "touch", "tr", "tree", "true", "truncate", "tsort", "uname", "unexpand", "uniq", "unzip", "wc"),
    *("which", "xargs", "xxd", "yes", "zcat", "zip"),
)
PLANTABLE = "./fumehood.yaml"


class Settings(NamedTuple):
    """Every setting, checked."""

    type: str = "local"
    fallback: str | None = None
    isolation: str = "auto"
    require: str | None = None
    network: bool = False
    supported_languages: tuple[str, ...] = ("python",)
    timeout_sec: float = 30
    max_timeout_sec: float = 300
    max_output_kb: int = 10
    output_kill_mb: int = 1024
    memory_mb: int = 1024
    cpu_sec: float | None = None
    processes: int = 256
    open_files: int = 1024
    file_mb: int = 256
    disk_mb: int = 512
    inodes: int = 16384
    block_dangerous_imports: bool = False
    dangerous_imports: tuple[str, ...] = ("os", "subprocess", "shutil", "socket")
    store_code: str = "on_error"
    artifacts_dir: str = "artifacts"
    store_max_mb: int = 256
    warm_cells: int = 4
    preload: tuple[str, ...] = ()
    session_idle_sec: float = 900
    session_max_sec: float = 24 * 3600
    session_busy: str = "queue"
    session_max_calls: int | None = None
    session_max_cpu_sec: float | None = None
    session_max_wall_sec: float | None = None
    session_max_output_mb: int | None = 2048
    start_retries: int = 2
    start_failure: str = "fail"
    output_dir: str = "output"
    tools_dir: str | None = None
    allowed_commands: tuple[str, ...] = DEFAULT_COMMANDS
    allowed_packages: tuple[str, ...] = ("*",)
    source_packages: tuple[str, ...] = ()
    wheelhouse: str | None = None
    packages_dir: str | None = None
    docker_host: str | None = None
    docker_context: str | None = None
    docker_tls_verify: bool = False
    docker_cert_path: str | None = None
    docker_runtime: str | None = None
    docker_image: str = "antigravity-sandbox:latest"
    docker_network_enabled: bool = False
    docker_cpu_limit: float = 0.5
    docker_memory_limit: str = "256m"

    def limits(self) -> Limits:
        """What one execution may use."""
        limits = Limits(
            memory_bytes=self.memory_mb * _MIB,
            cpu_s=self.cpu_sec,
            processes=self.processes,
            open_files=self.open_files,
            file_bytes=self.file_mb * _MIB,
            disk_bytes=self.disk_mb * _MIB,
            inodes=self.inodes,
        )
        return self.in_container(limits) if self.type == "docker" else limits

    def in_container(self, limits: Limits) -> Limits:
        """The same within a container's memory, half of which its files may take: they are kept there."""
        memory_bytes = min(limits.memory_bytes, v.size_bytes(self.docker_memory_limit))
        return limits._replace(memory_bytes=memory_bytes, disk_bytes=min(limits.disk_bytes, memory_bytes // 2))


EMPTY_MEANS_NONE = ("allowed_commands", "allowed_packages")
DEFAULTS: dict[str, Any] = Settings._field_defaults


class Field(NamedTuple):
    """One setting: `parse` takes a string or a native value, `narrows` says what ./fumehood.yaml may do to it."""

    name: str
    parse: Callable[[object], object]
    narrows: v.Rule
    description: str

    @property
    def env_name(self) -> str:
        return self.name.upper() if self.name.startswith("docker_") else "SANDBOX_" + self.name.upper()

    @property
    def default(self) -> object:
        return DEFAULTS[self.name]


FIELDS: tuple[Field, ...] = (
    Field("type", v.backend, v.NEVER, "Backend that runs the code."),
    Field("fallback", v.optional(v.backend), v.NEVER, "Backend to use when `type` is not available."),
    Field("isolation", v.choice("auto", *LEVELS), v.ISOLATION, "Level to run at; auto = the strongest that works."),
    Field(
        "require", v.optional(v.choice(*LEVELS)), v.ranked(None, *LEVELS), "Refuse to run at a level weaker than this."
    ),
    Field("network", v.boolean, v.OFF, "Let the program reach the network."),
    Field("supported_languages", v.languages, v.SUBSET, "Languages that may run: python, javascript, bash."),
    Field("timeout_sec", v.number(_WEEK_S), v.LOWER, "Seconds an execution may take when the call names none."),
    Field("max_timeout_sec", v.number(_WEEK_S), v.LOWER, "Most seconds a call may ask for; more is cut to this."),
    Field("max_output_kb", v.integer(1), v.LOWER, "KiB kept of each output stream; the rest is read and dropped."),
    Field("output_kill_mb", v.integer(1), v.LOWER, "MiB of output after which the program is killed."),
    Field("memory_mb", v.integer(1), v.LOWER, "MiB of memory for the whole process tree."),
    Field("cpu_sec", v.optional(v.number(10**7)), v.LOWER_THAN_TIMEOUT, "Seconds of CPU; none = timeout times cores."),
    Field("processes", v.integer(1), v.LOWER, "Processes and threads at one time."),
    Field("open_files", v.integer(1), v.LOWER, "Open files per process."),
    Field("file_mb", v.integer(1), v.LOWER, "MiB of the largest file the program may write."),
    Field("disk_mb", v.integer(1), v.LOWER, "MiB of private disk space."),
    Field("inodes", v.integer(1), v.LOWER, "Files and directories on the private disk."),
    Field("block_dangerous_imports", v.boolean, v.ON, "Screen imports before running; advice, not a boundary."),
    Field("dangerous_imports", v.modules, v.SUPERSET, "Modules the import screen refuses."),
    Field("store_code", v.choice(*_STORE_CODE), v.ranked(*_STORE_CODE), "Which executions are recorded."),
    Field("artifacts_dir", v.path, v.NEVER, "Directory of the records, relative to the working directory."),
    Field("store_max_mb", v.integer(1), v.NEVER, "MiB the records may take; the oldest go first."),
    Field("warm_cells", v.integer(0, 1024), v.LOWER, "Most sandboxes kept ready; 0 = each is made when asked for."),
    Field("preload", v.modules, v.NEVER, "Modules imported ahead, so that programs find them loaded."),
    Field("session_idle_sec", v.number(_WEEK_S), v.LOWER, "Seconds without a call after which a session ends."),
    Field("session_max_sec", v.number(_WEEK_S), v.LOWER, "Seconds after which a session ends in any case."),
    Field("session_busy", v.choice(*_BUSY), v.ranked(*_BUSY), "What a call does while another one runs."),
    Field("session_max_calls", v.optional(v.integer(1)), v.LOWER_OR_NONE, "Calls a session may make."),
    Field("session_max_cpu_sec", v.optional(v.number(10**7)), v.LOWER_OR_NONE, "Seconds of CPU a session may use."),
    Field("session_max_wall_sec", v.optional(v.number(_WEEK_S)), v.LOWER_OR_NONE, "Seconds its calls may take in all."),
    Field("session_max_output_mb", v.optional(v.integer(1)), v.LOWER_OR_NONE, "MiB that may come out of a session."),
    Field("start_retries", v.integer(0, 20), v.LOWER, "Times a sandbox that did not start is tried again."),
    Field("start_failure", v.choice("fail", "skip"), v.NEVER, "Then: fail, or skip the call with a warning."),
    Field("output_dir", v.path, v.NEVER, "Directory that files from /tmp/output are copied to, by session."),
    Field("tools_dir", v.optional(v.path), v.NEVER, "Directory of your own tools."),
    Field("allowed_commands", v.commands, v.SUBSET_OR_ALL, "Commands `exec` may start; * = all, empty = none."),
    Field("allowed_packages", v.packages, v.SUBSET_OR_ALL, "Packages `requirements` may name; * = all, empty = none."),
    Field("source_packages", v.named_packages, v.SUBSET, "Packages built here from source: their code runs unsealed."),
    Field("wheelhouse", v.optional(v.path), v.NEVER, "Directory of wheels to install from instead of an index."),
    Field("packages_dir", v.optional(v.path), v.NEVER, "Where installed requirements are kept; none = your cache."),
    Field(
        "docker_host", v.optional(v.text), v.NEVER, "Where the Docker engine is; none = as the docker command has it."
    ),
    Field("docker_context", v.optional(v.text), v.NEVER, "Docker context to use where docker_host is not set."),
    Field("docker_tls_verify", v.boolean, v.NEVER, "Reach docker_host over TLS, and check who answers."),
    Field("docker_cert_path", v.optional(v.path), v.NEVER, "Directory of ca.pem, cert.pem, key.pem; none = ~/.docker."),
    Field(
        "docker_runtime", v.optional(v.text), v.NEVER, "Runtime of the containers, such as runsc; none = the engine's."
    ),
    Field("docker_image", v.text, v.NEVER, "Image of the docker backend."),
    Field("docker_network_enabled", v.boolean, v.OFF, "Network in the docker backend."),
    Field("docker_cpu_limit", v.number(4096), v.LOWER, "CPUs of a container."),
    Field("docker_memory_limit", v.size, v.LOWER_SIZE, "Memory of a container: a number and b, k, m or g."),
)
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
        what = f"{field.name} = {v.shown(value)} (from {origin})"
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
