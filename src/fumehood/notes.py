"""What the last lines of stderr say when a program did not end by itself: what happened, and what to do."""

from __future__ import annotations

import signal

from .planning import Plan
from .types import Reason

_MB = 1024 * 1024
_GONE = "variables, imports and functions of earlier runs are gone; files are kept, so define again what you need"
_HALF = "; files are kept in memory, half of DOCKER_MEMORY_LIMIT at most"
BEGUN_ANEW = (
    "fumehood: the interpreter of this session had ended since its last run, and this one began in a new one:"
    " variables, imports and functions of earlier runs are gone; files are kept\n"
)


def note(reason: Reason, exit_code: int, plan: Plan, cpu_s: float, state_lost: bool | None) -> str:
    """Whole lines; `state_lost` is None where there was no state to lose."""
    lines = []
    if reason not in ("ok", "error"):
        lines.append(_what(reason, exit_code, plan, cpu_s, state_lost))
    if state_lost:
        how = "the run ended its interpreter" if reason in ("ok", "error") else "the interpreter was replaced"
        lines.append(f"{how}: {_GONE}")
    return "".join(f"fumehood: {line}\n" for line in lines)


def _what(reason: Reason, exit_code: int, plan: Plan, cpu_s: float, state_lost: bool | None) -> str:
    limits = plan.spec.limits
    if reason == "timeout":
        return _timeout(plan, state_lost)
    if reason == "memory":
        return (
            f"killed by the memory limit of {limits.memory_bytes // _MB} MB for all its processes;"
            f" use less, or raise {_memory_setting(plan)}"
        )
    if reason == "processes":
        return (
            f"stopped at the limit of {limits.processes} processes and threads; start fewer, or raise SANDBOX_PROCESSES"
        )
    if reason == "disk":
        return (
            f"stopped at a disk limit: {limits.disk_bytes // _MB} MB in all (SANDBOX_DISK_MB),"
            f" {limits.inodes} files (SANDBOX_INODES), {limits.file_bytes // _MB} MB per file (SANDBOX_FILE_MB);"
            f" write less, or raise the setting{_HALF if plan.runtime == 'docker' else ''}"
        )
    if reason == "output":
        return (
            f"killed after more than {plan.output_kill_bytes // _MB} MB of output;"
            " print less, or raise SANDBOX_OUTPUT_KILL_MB"
        )
    if reason == "cancelled":
        return f"cancelled by the caller and {_ended(state_lost)}"
    return _signal(exit_code - 128, plan, cpu_s)


def _memory_setting(plan: Plan) -> str:
    if plan.runtime != "docker":
        return "SANDBOX_MEMORY_MB"
    return "DOCKER_MEMORY_LIMIT, and SANDBOX_MEMORY_MB if that is lower"


def _timeout(plan: Plan, state_lost: bool | None) -> str:
    happened = f"Execution timed out after {plan.timeout_s:g} s and was {_ended(state_lost)}"
    if plan.cut_by is not None:
        return f"{happened}; no more was left of SANDBOX_{plan.cut_by.upper()}: this session takes no further call"
    return (
        f"{happened}; do less per call, or give a longer timeout"
        " (default SANDBOX_TIMEOUT_SEC, ceiling SANDBOX_MAX_TIMEOUT_SEC)"
    )


def _ended(state_lost: bool | None) -> str:
    return "interrupted, its variables are kept" if state_lost is False else "killed"


def _signal(number: int, plan: Plan, cpu_s: float) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "a signal"
    hint = ""
    allowed_s = plan.command.cpu_s
    if name == "SIGXCPU" or (name == "SIGKILL" and allowed_s and cpu_s >= allowed_s):
        hint = f"; it may use {allowed_s or 0:g} s of CPU time per process, raise SANDBOX_CPU_SEC"
    elif name == "SIGXFSZ":
        hint = f"; a file went past {plan.spec.limits.file_bytes // _MB} MB, raise SANDBOX_FILE_MB"
    elif name == "SIGSYS":
        hint = "; it made a system call that the sandbox does not allow"
    return f"killed by {name} (signal {number}){hint}"
