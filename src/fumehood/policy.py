"""Which commands may be started: advice beside isolation, not a boundary.

A listed shell or interpreter can start anything, and so can `env`, `find -exec` and `xargs`; variables that a program
reads code from, such as PYTHONPATH, pass. What holds a program is the sandbox; the list keeps an honest model to the
tools that were meant for it, and shows when it strays.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from .errors import CommandNotAllowed, ConfigurationError

ALL = "*"
_REST = "**"  # as the last pattern: any further arguments
_SHOWN_CHARS = 600
_SHELLS = {"ash", "bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"}
_SYSTEM = {"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"}


def check_command(argv: tuple[str, ...], allowed: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Raise CommandNotAllowed unless an entry of `allowed` fits: `program`, or `program pattern …`.

    A bare name is looked for on the sandbox's own PATH, so an entry `python` does not stand for /tmp/python.
    """
    if ALL in allowed:
        return
    program = argv[0] if argv else ""
    if ".." in program.split("/"):  # behind a link, `..` leads elsewhere than it reads
        raise _refused(program, allowed, "its path holds '..'")
    names = _names(program)
    found = [words for words in map(_words, allowed) if words[:1] and words[0] in names]
    if not found:
        raise _refused(program, allowed, _why_not(program))
    if not any(_fits(argv[1:], tuple(words[1:])) for words in found):
        taken = _shown([shlex.join(words).replace("'", "") for words in found], "; ")
        raise _refused(program, allowed, f"it is allowed with other arguments only: {taken}")
    for variable in env:
        if _decides(variable, program):
            why = f"its env= sets {variable[:60]!r}, which decides what runs"
            raise _refused(program, allowed, f"{why}; leave it out, or set SANDBOX_ALLOWED_COMMANDS={ALL}")


def _decides(variable: str, program: str) -> bool:
    """Whether another program, or code put before it, would run by the name of a listed one."""
    if variable == "ENV":  # means something to shells alone, and much else to others
        return posixpath.basename(program) in _SHELLS
    return variable in ("PATH", "BASH_ENV") or variable.startswith("LD_")


def _names(program: str) -> set[str]:
    """What an entry may call it."""
    if "/" not in program:
        return {program} - {""}
    if not program.startswith("/"):  # depends on where it is started
        return set()
    path = "/" + posixpath.normpath(program).lstrip("/")
    directory, name = posixpath.split(path)
    return {path, name} if directory in _SYSTEM else {path}


def _words(entry: str) -> list[str]:
    try:
        return shlex.split(entry)
    except ValueError as error:
        raise ConfigurationError(f"SANDBOX_ALLOWED_COMMANDS holds {entry!r}, which cannot be read: {error}.") from None


def _fits(arguments: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    if not patterns:
        return True
    if patterns[-1] == _REST:
        patterns = patterns[:-1]
        arguments = arguments[: len(patterns)]
    return len(arguments) == len(patterns) and all(map(fnmatchcase, arguments, patterns))


def _why_not(program: str) -> str:
    if " " in program:
        return "each argument must be an item of its own"
    names = _names(program)
    if "/" in program and len(names) < 2:  # those in a system directory go by their bare name, too
        return "a path outside the system's directories must be listed itself, absolute"
    return "a shell must be listed itself" if names & _SHELLS else "it is not on the list"


def _refused(program: str, allowed: tuple[str, ...], why: str) -> CommandNotAllowed:
    import logging  # only when something is refused

    shown = repr(program[:100])
    logging.getLogger("fumehood.policy").info("command refused: %s", shown)  # its arguments could hold a secret
    listed = _shown(allowed, ", ") or "none"
    return CommandNotAllowed(
        f"The command {shown} is not allowed: {why}. Allowed here: {listed} (SANDBOX_ALLOWED_COMMANDS)."
    )


def _shown(entries: Sequence[str], between: str) -> str:
    """All of them, or the first and how many more."""
    count, length = 0, 0
    for entry in entries:
        length += len(entry) + len(between)
        if length - len(between) > _SHOWN_CHARS:
            break
        count += 1
    count = max(count, 1)
    more = f" and {len(entries) - count} more" if count < len(entries) else ""
    return between.join(entries[:count]) + more
