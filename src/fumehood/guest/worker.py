"""A Python that keeps its variables: one run after another, asked for and answered over a byte stream.

It lives with the code that it runs, and the host believes nothing it says. What is private here is so that a confused
program, which closes, patches or deletes what it finds, does not end the session by accident.
"""

from __future__ import annotations

import _ast
import builtins
import gc
import os
import sys
import types

from . import channel, display, figures, plain, stand_ins
from .channel import Channel, Interrupts, inside, move_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # every function below keeps these, whatever becomes of the program's

_write, _fstat, _dup2, _getpid, _exit = os.write, os.fstat, os.dup2, os.getpid, os._exit
_getrecursionlimit, _setrecursionlimit = sys.getrecursionlimit, sys.setrecursionlimit

_OURS = (globals(), *map(vars, (channel, display, figures, plain, stand_ins)))
_NAME = 200
_COROUTINE = 0x80  # of a code object that awaits
_RECURSION = 1000


def import_ahead() -> None:
    """Load once, before the fork, what every session needs. No more: each cell forked later pays for every page."""
    import __future__  # noqa: F401

    import base64  # noqa: F401
    import fcntl  # noqa: F401
    import importlib.machinery  # noqa: F401
    import io  # noqa: F401
    import json  # noqa: F401
    import linecache  # noqa: F401
    import pprint  # noqa: F401
    import traceback  # noqa: F401


def serve(read_fd: int, write_fd: int, flush_c: Callable[[], None]) -> NoReturn:
    """Run what is asked for until nobody asks."""
    gc.enable()
    interrupts = Interrupts()
    frames = Channel(read_fd, write_fd, interrupts)
    python = _Python(frames, interrupts, flush_c)
    os.register_at_fork(after_in_child=frames.close)
    while (request := frames.receive()) is not None:
        if request.get("op") == "run":
            python.answer(request["id"], request["code"])
    python.flush()
    _exit(0)


class _Python:
    """One `__main__`, and the runs in it."""

    def __init__(self, frames: Channel, interrupts: Interrupts, flush_c: Callable[[], None]) -> None:
        import __future__

        import linecache
        import traceback

        self._pid = _getpid()
        self._frames, self._interrupts, self._flush_c = frames, interrupts, flush_c
        self._excepthook, self._describe = sys.__excepthook__, traceback.TracebackException
        self._spare = [move_up(fd) for fd in (0, 1, 2)]
        self._lines = linecache.cache
        self._sources: dict[str, Any] = {}
        self._feature_flags = 0
        for name in __future__.all_feature_names:
            self._feature_flags |= getattr(__future__, name).compiler_flag
        self._flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._loop: Any = None
        self._runs = 0
        self._recent: list[Any] = []  # the last three values, newest first
        self._main = types.ModuleType("__main__")
        self._scope = self._main.__dict__
        sys.argv = [""]
        _open_streams()
        plain.install()
        display.install(frames.show)
        figures.install(frames.show)
        stand_ins.install()

    def answer(self, run: int, source: str) -> None:
        """Run it and say how it ended, whatever happens."""
        exit_code, error = 1, "SystemError"
        self._runs += 1
        self._frames.begin(run)
        try:
            exit_code, error = self._run(f"<run {self._runs}>", source)  # type: ignore[assignment]
        except BaseException as broken:
            _complain(f"fumehood: the run could not be finished: {type(broken).__name__}\n")
        self._interrupts.end()
        self._frames.finish(exit_code, error, self._interrupts.has_struck)

    def _run(self, name: str, source: str) -> tuple[int, str | None]:
        for fd, spare in enumerate(self._spare):
            _mend(fd, spare)
        self._scope.update(__name__="__main__", __builtins__=builtins)
        sys.modules["__main__"] = self._main
        figures.begin()
        value, failure = self._attempt(self._execute, name, source)
        if _getrecursionlimit() < _RECURSION:
            _setrecursionlimit(_RECURSION)  # or we could not even tell
        failures = [failure, self._attempt(figures.finish, value)[1]]
        if value is not None and failure is None:
            failures.append(self._attempt(self._show_value, value)[1])
        del value
        code, error = 0, None
        for failure in failures:
            if failure is not None:
                if not code and error is None:
                    code, error = _ending(failure)
                if self._attempt(self._conclude, failure)[1] is not None:
                    _complain(f"{error or 'SystemExit'}\n")
        if self._attempt(self.flush)[1] is not None:
            self._attempt(self.flush)  # once more: it was interrupted
        return code, error

    def _attempt(self, function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
        value, failure = None, None
        try:
            value = inside(self._interrupts, function, *arguments)
        except BaseException as error:
            failure = error
        if _getpid() != self._pid:
            self._leave(failure)
        return value, failure

    def _leave(self, failure: BaseException | None) -> NoReturn:
        """A fork of the program came back to us: it is done."""
        code = 1
        try:
            if failure is not None:
                self._conclude(failure)
            code = 0 if failure is None else _ending(failure)[0]
            self.flush()
        finally:
            _exit(code)

    def _execute(self, name: str, source: str) -> Any:
        self._interrupts.restore()
        _open_streams()
        source = source.replace("\r\n", "\n").replace("\r", "\n")
        lines = source.split("\n")
        self._sources[name] = self._lines[name] = (len(source), None, [line + "\n" for line in lines], name)
        self._scope.pop("__warningregistry__", None)  # it knows lines by number, and numbers begin anew
        tree = compile(source, name, "exec", self._flags | _ast.PyCF_ONLY_AST, dont_inherit=True)
        last = tree.body[-1] if tree.body else None
        parts: list[Any] = [tree]
        if isinstance(last, _ast.Expr) and not _is_silenced(last, lines):
            tree.body.pop()
            parts.append(_ast.Expression(last.value))
        programs: list[types.CodeType] = []
        flags = self._flags
        for part in parts:
            mode = "eval" if isinstance(part, _ast.Expression) else "exec"
            programs.append(compile(part, name, mode, flags, dont_inherit=True))
            flags |= programs[-1].co_flags & self._feature_flags
        del tree, last, parts
        self._flags = flags
        if any(program.co_flags & _COROUTINE for program in programs):
            return self._await(self._evaluate(programs))
        value = None
        for program in programs:
            value = eval(program, self._scope)
        return value

    async def _evaluate(self, programs: list[types.CodeType]) -> Any:
        value = None
        for program in programs:
            value = eval(program, self._scope)
            if program.co_flags & _COROUTINE:
                value = await value
        return value

    def _await(self, coroutine: Any) -> Any:
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt as interrupt:
            if not task.done():  # it waits, and must not go on in the next run
                task.cancel()
                try:
                    self._loop.run_until_complete(task)
                except asyncio.CancelledError as cancelled:
                    interrupt.__traceback__ = cancelled.__traceback__  # where it waited
                    interrupt.__context__ = None
            raise
        finally:
            if task.done() and not task.cancelled():
                task.exception()  # seen

    def _show_value(self, value: Any) -> None:
        bundle = display.bundle(value) if not figures.was_sent(value) else {"text/plain": repr(value)}
        names = ("_", "__", "___")
        kept = [self._scope.get(name, self) for name in names]
        ours = [*self._recent, self, self, self][:3]
        if all(one is other for one, other in zip(kept, ours, strict=True)):  # who uses these names may have them
            self._recent = [value, *self._recent][:3]
            self._scope.update(zip(names, self._recent, strict=False))
        self._frames.show(bundle, is_last=True)

    def _conclude(self, failure: BaseException) -> None:
        """Show how the program failed."""
        _flush(sys.stdout)
        if isinstance(failure, SystemExit):
            if failure.code is not None and not isinstance(failure.code, int):
                _print_error(f"{failure.code}\n")
            return
        self._tidy(failure)
        if sys.excepthook is self._excepthook:
            self._print(failure)
        else:
            try:
                sys.excepthook(type(failure), failure, failure.__traceback__)
            except Exception as broken:
                _print_error(f"Error in sys.excepthook: {type(broken).__name__}\n")
                self._print(failure)

    def _print(self, failure: BaseException) -> None:
        for name, entry in self._sources.items():
            self._lines.setdefault(name, entry)
        try:
            described = self._describe(type(failure), failure, failure.__traceback__, compact=True)
            text = "".join(described.format())
        except Exception:
            text = f"{type(failure).__name__}\n"
        _print_error(text)

    def _tidy(self, failure: BaseException) -> None:
        """The way through our own frames says nothing to anybody."""
        chain, seen = [failure], set()
        while chain:
            error = chain.pop()
            if id(error) in seen:
                continue
            seen.add(id(error))
            error.__traceback__ = _without_ours(error.__traceback__)
            chain += [other for other in (error.__cause__, error.__context__) if other is not None]
        trace = failure.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename not in self._sources:
            trace = trace.tb_next
        failure.__traceback__ = trace or failure.__traceback__
        if isinstance(failure, SyntaxError) and failure.text is None and failure.filename in self._sources:
            lines, number = self._sources[failure.filename][2], failure.lineno or 0
            failure.text = lines[number - 1] if 0 < number <= len(lines) else None

    def flush(self) -> None:
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            _flush(stream)
        self._flush_c()


def _ending(failure: BaseException) -> tuple[int, str | None]:
    """The exit code and the exception's name; to exit is no error."""
    if isinstance(failure, SystemExit):
        code = failure.code
        return (0 if code is None else code & 0xFF if isinstance(code, int) else 1), None
    name = type.__dict__["__name__"].__get__(type(failure))  # a metaclass of the program's is not asked
    return 130 if isinstance(failure, KeyboardInterrupt) else 1, name[:_NAME]


def _is_silenced(last: _ast.Expr, lines: list[str]) -> bool:
    """Whether a semicolon follows."""
    rest = lines[(last.end_lineno or 1) - 1 :]
    rest[0] = rest[0].encode()[last.end_col_offset :].decode()
    return "\n".join(rest).lstrip(" \t\f\\\n").startswith(";")


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    entries = []
    while trace is not None:
        if not any(trace.tb_frame.f_globals is ours for ours in _OURS):
            entries.append(trace)
        trace = trace.tb_next
    following = None
    for entry in reversed(entries):
        entry.tb_next = following
        following = entry
    return following


def _mend(fd: int, spare: int) -> None:
    try:
        _fstat(fd)
    except OSError:
        _dup2(spare, fd)


def _open_streams() -> None:
    """Streams that the program closed or lost come back for the next run."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream: Any = getattr(sys, name, None)
        try:
            is_open = stream is not None and not stream.closed
        except Exception:
            is_open = False
        if not is_open:
            mode, errors = ("w" if fd else "r"), ("backslashreplace" if fd == 2 else "strict")
            stream = open(fd, mode, 1 if fd else -1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        elif fd == 1 and isinstance(getattr(stream, "line_buffering", None), bool) and not stream.line_buffering:
            stream.reconfigure(line_buffering=True)  # seen while it runs


def _print_error(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except Exception:
        _complain(text)


def _complain(text: str) -> None:
    try:
        _write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except Exception:
        pass
