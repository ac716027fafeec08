"""Tools of the user's own: the public functions of the files in SANDBOX_TOOLS_DIR.

They run in this process, with all its rights, so the directory must be one that no sandboxed program and no other user
could have written: absolute, not in the working directory nor by a link there, owned by this user or root, not writable
by everyone.
"""

from __future__ import annotations

import inspect
import json
import os
import stat
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from ..errors import ConfigurationError
from ..execution import shorten
from . import hints
from .calls import Call
from .hints import Failure
from .table import Tool, ToolCategory

_SESSION = "session"  # a parameter of that name is given the session
_MAX_BYTES = 1024 * 1024
_MAX_ERROR_BYTES = 4096
_MAX_LINKS = 40  # the kernel's own
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class Found(NamedTuple):
    """The tools of a directory, and what could not be used, by file."""

    tools: tuple[Tool, ...] = ()
    problems: tuple[str, ...] = ()


def load(directory: str | None, taken: frozenset[str], origin: str) -> Found:
    """Every tool in `directory`, which `origin` named; a name that is in use already is an error."""
    if directory is None:
        return Found()
    found: dict[str, Tool] = {}
    homes: dict[str, str] = dict.fromkeys(taken, "fumehood itself")
    problems: list[str] = []
    for path in _files(_checked(directory, origin)):
        name = os.path.basename(path)
        try:
            module = _module(path)
            tools = list(_tools(module, problems, name))
        except (Exception, SystemExit) as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
            continue
        for tool in tools:
            if tool.name in homes:
                raise ConfigurationError(
                    f"{path} defines the tool {tool.name!r}, a name that {homes[tool.name]} has; rename one of them"
                )
            found[tool.name], homes[tool.name] = tool, path
    if problems:
        import logging

        for problem in problems:
            logging.getLogger("fumehood.tools").warning("a tool of %s is left out: %s", directory, problem)
    return Found(tuple(found.values()), tuple(problems))


def _checked(directory: str, origin: str) -> str:
    """The real path of a directory that only its user can have filled."""
    what = f"tools_dir = {directory!r} (from {origin})"
    if not os.path.isabs(directory):
        raise ConfigurationError(
            f"{what} is relative: an agent could have made that directory where you happen to be. Name it absolutely."
        )
    real = os.path.realpath(directory)
    try:
        if not stat.S_ISDIR(os.stat(real).st_mode):
            raise ConfigurationError(f"{what} is not a directory. Name one, or leave the setting out.")
        if _by_working_directory(directory):
            raise ConfigurationError(
                f"{what} is in the working directory, where an agent could plant a tool. Move it, or start elsewhere."
            )
        _refuse_foreign(os.stat(real), what)
        parent = real
        while parent != "/":
            parent = os.path.dirname(parent)
            mode = os.stat(parent).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise ConfigurationError(f"{what} is beneath {parent}, which everyone may write to. Move it.")
    except FileNotFoundError:
        raise ConfigurationError(
            f"{what} does not exist. Make it, outside the working directory, or leave the setting out."
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{what} cannot be read: {error.strerror}. Mend that, or leave the setting out."
        ) from None
    return real


def _by_working_directory(path: str) -> bool:
    """Whether it lies there, or is reached by a link that does."""
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:
        return False
    return here != "/" and any(os.path.commonpath([here, passed]) == here for passed in _way(path))


def _way(path: str) -> Iterator[str]:
    """The real path, and that of every link that is passed on the way to it."""
    at, ahead, links = "/", path.split("/")[::-1], 0
    while ahead:
        step = os.path.normpath(os.path.join(at, ahead.pop()))
        if not os.path.islink(step) or links > _MAX_LINKS:
            at = step
            continue
        yield step
        links += 1
        target = os.readlink(step)
        at = "/" if target.startswith("/") else at
        ahead += target.split("/")[::-1]
    yield at


def _refuse_foreign(status: os.stat_result, what: str) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(f"{what} belongs to another user. It must be yours or root's.")
    if status.st_mode & stat.S_IWOTH:
        raise ConfigurationError(f"{what} may be written to by everyone. Take that right away (chmod o-w).")


def _files(directory: str) -> list[str]:
    names = sorted(name for name in os.listdir(directory) if name.endswith(".py") and not name.startswith(("_", ".")))
    return [os.path.join(directory, name) for name in names]


def _module(path: str) -> types.ModuleType:
    """Run the file that was checked: its bytes, and no cached byte code beside it."""
    handle = os.open(os.path.realpath(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError("it is not a regular file")
        _refuse_foreign(status, "it")
        if _by_working_directory(path):
            raise ConfigurationError("it is a link into the working directory, where an agent could plant a tool")
        source = file.read(_MAX_BYTES + 1)
    if len(source) > _MAX_BYTES:
        raise ConfigurationError("it is larger than 1 MB")
    module = types.ModuleType(f"fumehood_user_tools_{os.path.basename(path)[:-3]}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    return module


def _tools(module: types.ModuleType, problems: list[str], file: str) -> Iterator[Tool]:
    for name, value in vars(module).items():
        ours = inspect.isfunction(value) and value.__module__ == module.__name__
        if not ours or name.startswith("_") or not value.__doc__:
            continue
        try:
            yield _tool(name, value)
        except (TypeError, NameError) as error:
            problems.append(f"{file}: {name}: {error}")


def _tool(name: str, function: Callable[..., Any]) -> Tool:
    description = inspect.getdoc(function) or ""
    types_by_name = get_type_hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    wants_session = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"the parameter {parameter.name} must be one that can be given by name")
        if parameter.name == _SESSION:
            wants_session = True
            continue
        if parameter.name not in types_by_name:
            raise TypeError(f"the parameter {parameter.name} needs a type hint")
        schema = schema_of(types_by_name[parameter.name])
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif _is_json(parameter.default):
            schema = {**schema, "default": parameter.default}
        properties[parameter.name] = schema
    return Tool(
        name,
        name.replace("_", " ").capitalize(),
        ToolCategory.USER,
        description,
        {"type": "object", "properties": properties, "required": required, "additionalProperties": False},
        _calling(function, wants_session),
        _failed,
        destructive=True,
        template=False,
    )


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type hint."""
    if hint is Any:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, inner = get_origin(hint), get_args(hint)
    if hint is list or origin is list:
        return {"type": "array", "items": schema_of(inner[0])} if inner else {"type": "array"}
    if hint is dict or origin is dict:
        if inner and inner[0] is not str:
            raise TypeError(f"{hint} cannot be had from JSON: its keys must be str")
        return {"type": "object", "additionalProperties": schema_of(inner[1])} if inner else {"type": "object"}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(option) for option in inner]}
    raise TypeError(f"{hint} is not a type a model can give: use str, int, float, bool, list, dict, Literal or | None")


def _calling(function: Callable[..., Any], wants_session: bool) -> Callable[[Call], dict[str, Any]]:
    def call(given: Call) -> dict[str, Any]:
        arguments = dict(given.arguments)
        if wants_session:
            arguments[_SESSION] = given.session
        try:
            value = function(**arguments)
            if inspect.isawaitable(value):
                value = _awaited(value)
            return {"success": True, "result": _as_json(value), "hint": hints.USER_DONE}
        except KeyboardInterrupt:  # somebody wants the whole program to stop
            raise
        except BaseException as error:  # the tool's own failure, told as such; SystemExit is one
            said = shorten(f"{type(error).__name__}: {error}", _MAX_ERROR_BYTES)
            return {"success": False, "error": said, "hint": hints.USER_FAILED}

    return call


def _awaited(value: Any) -> Any:
    """In a loop of its own, in a thread of its own: the caller may be inside a running one."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def wait() -> Any:
        return await value

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, wait()).result()


def _failed(failure: Failure, _: Mapping[str, Any]) -> dict[str, Any]:
    return {"success": False, "error": failure.error, "hint": failure.hint}


def _as_json(value: Any) -> Any:
    # NaN, Infinity and half a surrogate pair fail here, not where the reply is sent.
    return json.loads(json.dumps(value, default=str, allow_nan=False, ensure_ascii=False).encode())


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
