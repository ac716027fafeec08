"""Checks what a call was given, before anything is started. Every refusal names the argument and what it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import BadArgument
from .types import Limits

_MAX_STRING_BYTES = 128 * 1024 - 1  # the kernel's bound on one argument or variable (MAX_ARG_STRLEN)
_MAX_STRINGS_BYTES = 1024 * 1024
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 1024
_MB = 1024 * 1024
_NO_ARGS: tuple[()] = ()


def code_bytes(code: object, limits: Limits) -> bytes:
    """The program text as the bytes of its file."""
    if not isinstance(code, str):
        raise BadArgument(f"code must be a str holding the program text, not {_kind(code)}")
    data = _encoded("code", code)
    bound = min(limits.file_bytes, limits.disk_bytes)
    if len(data) > bound:
        raise BadArgument(
            f"code is {len(data):,} bytes, more than the {bound // _MB} MB a file may have"
            " (SANDBOX_FILE_MB, SANDBOX_DISK_MB); put the data in files= and keep the program small"
        )
    return data


def stdin_bytes(stdin: object) -> bytes:
    """What the program reads from its standard input."""
    if stdin is None:
        return b""
    if isinstance(stdin, str):
        return _encoded("stdin", stdin)
    if isinstance(stdin, (bytes, bytearray, memoryview)):
        return bytes(stdin)
    raise BadArgument(f"stdin must be str or bytes, not {_kind(stdin)}")


def content_bytes(content: object) -> bytes:
    """What a file is to hold."""
    if isinstance(content, str):
        return _encoded("content", content)
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    raise BadArgument(f"content must be str or bytes, not {_kind(content)}")


def arg_strings(args: object) -> tuple[str, ...]:
    """The arguments after the program's own name."""
    if args is None or args is _NO_ARGS:
        return ()
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise BadArgument(f"args must be a list of str, not {_kind(args)}")
    checked = []
    for position, arg in enumerate(args):
        if not isinstance(arg, str):
            raise BadArgument(f"args[{position}] must be a str, not {_kind(arg)}")
        _check_string(f"args[{position}]", arg)
        checked.append(str.__str__(arg))
    _check_total("args", checked)
    return tuple(checked)


def command_strings(command: object) -> tuple[str, ...]:
    """A whole command: the program and its arguments."""
    if isinstance(command, (str, bytes)):
        raise BadArgument(
            f"command must be a list such as ['ls','-l'], not a {'string' if isinstance(command, str) else 'bytes'}:"
            " split it, or use ['sh','-c', …]"
        )
    if not isinstance(command, (list, tuple)):
        raise BadArgument(f"command must be a list such as ['ls','-l'], not {_kind(command)}")
    if not command:
        raise BadArgument("command is empty: it must be a list such as ['ls','-l']")
    for position, part in enumerate(command):
        if not isinstance(part, str):
            raise BadArgument(f"command[{position}] must be a str, not {_kind(part)}")
        _check_string(f"command[{position}]", part)
    if not command[0].strip():
        raise BadArgument("command[0] is empty: it must name a program, as in ['ls','-l']")
    checked = tuple(str.__str__(part) for part in command)
    _check_total("command", checked)
    return checked


def env_strings(env: object) -> dict[str, str]:
    """The variables the program gets on top of the sandbox's own."""
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise BadArgument(f"env must be a mapping of str to str, not {_kind(env)}")
    checked = {}
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise BadArgument(f"env: a name must be a non-empty str without '=' or NUL, not {_shown(name)}")
        if not isinstance(value, str):
            raise BadArgument(f"env[{_shown(name)}] must be a str, not {_kind(value)}")
        _check_string("env name", name)
        _check_string(f"env[{_shown(name)}]", value)
        checked[str.__str__(name)] = str.__str__(value)
    _check_total("env", [*checked, *checked.values()])
    return checked


def file_bytes(files: object, program: str, limits: Limits) -> dict[str, bytes]:
    """Files to lay out in the working directory, by relative name."""
    if files is None:
        return {}
    if not isinstance(files, Mapping):
        raise BadArgument(f"files must be a mapping of relative names to str or bytes, not {_kind(files)}")
    checked: dict[str, bytes] = {}
    for name, content in files.items():
        _check_name(name, program)
        what = f"files[{_shown(name)}]"
        if isinstance(content, str):
            data = _encoded(what, content)
        elif isinstance(content, (bytes, bytearray, memoryview)):
            data = bytes(content)
        else:
            raise BadArgument(f"{what} must be str or bytes, not {_kind(content)}")
        if len(data) > limits.file_bytes:
            raise BadArgument(f"{what} is larger than {limits.file_bytes // _MB} MB; raise SANDBOX_FILE_MB")
        checked[str.__str__(name)] = data
    _check_tree(checked, limits)
    return checked


def _check_name(name: object, program: str) -> None:
    if not isinstance(name, str):
        raise BadArgument(f"files: a name must be a str, not {_kind(name)}")
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise BadArgument(
            f"files: {_shown(name)} must be a relative name such as 'data/in.csv', without '..', '.' or NUL"
        )
    data = _encoded(f"files: the name {_shown(name)}", name)
    if len(data) > _MAX_PATH_BYTES or any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
        raise BadArgument(
            f"files: {_shown(name)} is too long: {_MAX_NAME_BYTES} bytes a part, {_MAX_PATH_BYTES} in all"
        )
    if parts[0] == program:
        raise BadArgument(f"files: {program!r} is the name of the program itself; choose another")


def _check_tree(files: Mapping[str, bytes], limits: Limits) -> None:
    directories = set()
    for name in files:
        while "/" in name:
            name = name.rpartition("/")[0]
            directories.add(name)
    for name in directories & files.keys():
        raise BadArgument(f"files: {_shown(name)} is both a file and a directory of another name")
    total = sum(map(len, files.values()))
    if total > limits.disk_bytes:
        raise BadArgument(
            f"files are {total:,} bytes, more than the {limits.disk_bytes // _MB} MB of disk; raise SANDBOX_DISK_MB"
        )
    if len(files) + len(directories) >= limits.inodes:
        raise BadArgument(f"files: more names than the {limits.inodes} inodes of the disk; raise SANDBOX_INODES")


def _check_string(what: str, text: str) -> None:
    if "\0" in text:
        raise BadArgument(f"{what} must not contain NUL")
    if len(_encoded(what, text)) > _MAX_STRING_BYTES:
        raise BadArgument(f"{what} is longer than {_MAX_STRING_BYTES:,} bytes; send it by stdin= or files=")


def _check_total(what: str, strings: Sequence[str]) -> None:
    if sum(map(len, strings)) > _MAX_STRINGS_BYTES:
        raise BadArgument(
            f"{what} is longer than {_MAX_STRINGS_BYTES:,} characters in all; send it by stdin= or files="
        )


def _encoded(what: str, text: str) -> bytes:
    try:
        return str.encode(text, "utf-8")
    except UnicodeEncodeError as error:
        raise BadArgument(
            f"{what} cannot be written as UTF-8: character {error.start} is a lone surrogate"
            f" (U+{ord(text[error.start]):04X}); remove it"
        ) from None


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__[:60]


def _shown(name: object) -> str:
    return ascii(name[:60]) if isinstance(name, str) else _kind(name)
