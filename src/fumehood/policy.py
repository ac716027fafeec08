"""Which commands may be started: advice beside isolation, not a boundary.

A listed shell or interpreter can start anything, and so can `env`, `find -exec` and `xargs`. What holds a program is
the sandbox; the list keeps an honest model to the tools that were meant for it, and shows when it strays.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from fnmatch import fnmatchcase

from .errors import CommandNotAllowed, ConfigurationError

ALL = "*"
_REST = "**"  # as the last pattern: any further arguments
_SHOWN = 40
_SHELLS = {"ash", "bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"}
_SYSTEM = {"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"}


def check_command(argv: tuple[str, ...], allowed: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Raise CommandNotAllowed unless an entry of `allowed` fits: `program`, or `program pattern …`.

    A bare name is looked for on the sandbox's own PATH, so an entry `python` does not stand for /tmp/python.
    """
    if ALL in allowed:
        return
    program = argv[0] if argv else ""
    if "/" not in program and "PATH" in env:
        raise _refused(program, allowed, "its env= sets PATH, so another program could go by that name")
    if ".." in program.split("/"):  # behind a link, `..` leads elsewhere than it reads
        raise _refused(program, allowed, "its path holds '..'")
    names = _names(program)
    found = [words for words in map(_words, allowed) if words[:1] and words[0] in names]
    if not found:
        raise _refused(program, allowed, _why_not(program))
    if not any(_fits(argv[1:], tuple(words[1:])) for words in found):
        taken = "; ".join(shlex.join(words).replace("'", "") for words in found[:_SHOWN])
        raise _refused(program, allowed, f"it is allowed with other arguments only: {taken}")


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
    name = posixpath.basename(program)
    if name in _SHELLS:
        return "a shell must be listed itself"
    if " " in program:
        return "each argument must be an item of its own"
    if "/" in program:
        return "a path outside the system's directories must be listed itself, absolute"
    return "it is not on the list"


def _refused(program: str, allowed: tuple[str, ...], why: str) -> CommandNotAllowed:
    import logging  # only when something is refused

    shown = repr(program[:100])
    logging.getLogger("fumehood.policy").info("command refused: %s", shown)  # its arguments could hold a secret
    listed = ", ".join(allowed[:_SHOWN]) + (", …" if len(allowed) > _SHOWN else "")
    return CommandNotAllowed(
        f"The command {shown} is not allowed: {why}. Allowed here: {listed or 'none'} (SANDBOX_ALLOWED_COMMANDS)."
    )
