"""Every setting: its default, how it is parsed, what may narrow it and what it means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import config_values as v
from .types import LEVELS, Limits

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
    packages_mb: int = 2048
    packages_files: int = 100_000
    docker_host: str | None = None
    docker_context: str | None = None
    docker_tls_verify: bool = False
    docker_cert_path: str | None = None
    docker_runtime: str | None = None
    docker_image: str = "antigravity-sandbox:latest"
    docker_network_enabled: bool = False
    docker_cpu_limit: float = 0.5
    docker_memory_limit: str = "256m"
    remote_url: str | None = None
    remote_token: v.Secret | None = None
    remote_token_file: str | None = None
    remote_cleartext: bool = False

    def limits(self) -> Limits:
        """What one execution may use."""
        limits = Limits(
            memory_bytes=max(self.memory_mb, LEAST_MEMORY_MB) * _MIB,
            cpu_s=self.cpu_sec,
            processes=self.processes,
            open_files=max(self.open_files, LEAST_OPEN_FILES),
            file_bytes=self.file_mb * _MIB,
            disk_bytes=self.disk_mb * _MIB,
            inodes=self.inodes,
        )
        return self.in_container(limits) if self.type == "docker" else limits

    def in_container(self, limits: Limits) -> Limits:
        """The same within a container's memory, half of which its files may take: they are kept there."""
        memory_bytes = min(limits.memory_bytes, v.size_bytes(self.docker_memory_limit))
        return limits._replace(memory_bytes=memory_bytes, disk_bytes=min(limits.disk_bytes, memory_bytes // 2))


LEAST_MEMORY_MB, LEAST_OPEN_FILES = 8, 16  # a sandbox cannot be made with less
UNSHOWN = ("remote_url", "remote_token")  # not even where they are wrong: there may be a token in them
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
    Field("memory_mb", v.integer(1), v.LOWER, f"MiB of memory for the process tree, at least {LEAST_MEMORY_MB}."),
    Field("cpu_sec", v.optional(v.number(10**7)), v.LOWER_THAN_TIMEOUT, "Seconds of CPU; none = timeout times cores."),
    Field("processes", v.integer(1), v.LOWER, "Processes and threads at one time."),
    Field("open_files", v.integer(1), v.LOWER, f"Open files per process, at least {LEAST_OPEN_FILES}."),
    Field("file_mb", v.integer(1), v.LOWER, "MiB of the largest file the program may write."),
    Field("disk_mb", v.integer(1), v.LOWER, "MiB of private disk space."),
    Field("inodes", v.integer(1), v.LOWER, "Files and directories on the private disk."),
    Field("block_dangerous_imports", v.boolean, v.ON, "Screen imports before running; advice, not a boundary."),
    Field("dangerous_imports", v.modules, v.SUPERSET, "Modules the import screen refuses."),
    Field("store_code", v.choice(*_STORE_CODE), v.ranked(*_STORE_CODE), "Which executions are recorded."),
    Field("artifacts_dir", v.path, v.NEVER, "Directory of the records, relative to the working directory."),
    Field("store_max_mb", v.integer(1), v.NEVER, "MiB the records may take on the disk; the oldest go first."),
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
    Field("packages_mb", v.integer(1), v.LOWER, "MiB that one set of installed requirements may take, unpacked."),
    Field("packages_files", v.integer(1), v.LOWER, "Files and directories that one such set may be."),
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
    Field("remote_url", v.optional(v.url), v.NEVER, "Where the server of the remote backend is: http(s)://host:port."),
    Field("remote_token", v.optional(v.secret), v.NEVER, "Token for that server; never shown."),
    Field("remote_token_file", v.optional(v.path), v.NEVER, "File that holds the token, instead."),
    Field("remote_cleartext", v.boolean, v.NEVER, "Send token and code over http:// to other machines too."),
)
