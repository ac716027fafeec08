"""Runs the program inside a cell. Standard library only.

Everything here is in the program's reach: nothing it says is believed. Its end is a signal to the supervisor, which
equals an early `_exit`; the supervisor and the host see everything else for themselves.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # see the engine's zygote
import atexit
import builtins
import gc
import io
import marshal
import os
import resource
import sys
import time
import types

from . import worker
from .wire import DONE, HEADER

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

_NOTICED_S = 0.2


def rehearse(workspace: str, directory: str) -> None:
    """Go through the motions while there is time: every page that is touched now is not copied in the request."""
    source = b"import sys\nprint(6 * 7, file=sys.stdout)\n"
    argv = ["python", "main.py"]
    body = marshal.dumps({"argv": argv, "script": source, "inline": True, "env": {}, "files": {}, "cpu_s": 0})
    stdout, before = sys.stdout, sys.argv
    for _ in range(2):  # what the first one leaves is what the second one, and then the program, finds
        order = _passed_on(body)
        _settle(order, workspace)
        path = _keep(order, directory)
        assert path is not None
        sys.stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", line_buffering=True)
        _run_python(source, argv, path)
        gc.disable()
        _flush(sys.stdout)
        sys.stdout, sys.argv = stdout, before
        del sys.path[0]
        _flush(sys.stdout)
        _flush(sys.stderr)
        os.unlink(path)
    resource.setrlimit(resource.RLIMIT_CPU, resource.getrlimit(resource.RLIMIT_CPU))


def rehearse_command(workspace: str) -> None:
    """The same for a command in a session, whose files it does not touch."""
    body = marshal.dumps({"argv": [""], "script": None, "env": {}, "files": {}, "cpu_s": 0})
    for _ in range(2):
        _settle(_passed_on(body), workspace)
        try:
            _become(["nothing"])
        except OSError:
            pass


def _passed_on(body: bytes) -> dict[str, Any]:
    read_end, write_end = os.pipe()
    os.write(write_end, HEADER.pack(len(body)) + body)
    order = _receive(read_end)
    os.close(read_end)
    os.close(write_end)
    return order


def run(supervisor: int | None, workspace: str, directory: str, flush_c: Callable[[], None]) -> NoReturn:
    """Wait on standard input for the program, then be it. What follows the program there is its own input.

    Without a `supervisor` its end is an exit like any other.
    """
    try:
        order = _receive(0)
        _settle(order, workspace)
        if order["serves"]:
            sys.path.insert(0, os.getcwd())
            worker.serve(0, 0, flush_c)
        path = _keep(order, directory)
        argv: list[str] = order["argv"]
        if path is not None and order["inline"]:
            code = _run_python(order["script"], argv, path)
        else:
            code = _run_command(argv if path is None else [argv[0], path, *argv[2:]])
        _end(code, supervisor, flush_c)
    except BaseException as error:
        os.write(2, f"fumehood: the program could not be started: {error!r}\n".encode())
        os._exit(125)
    os._exit(125)


def _receive(fd: int) -> dict[str, Any]:
    header = _read_exactly(fd, HEADER.size)
    body = None if header is None else _read_exactly(fd, HEADER.unpack(header)[0])
    if body is None:
        os._exit(0)  # nobody wants this cell
    order: dict[str, Any] = marshal.loads(body)
    return order


def _settle(order: Mapping[str, Any], workspace: str) -> None:
    if order["env"]:
        os.environ.update(order["env"])
        added = order["env"].get("PYTHONPATH", "")
        sys.path[:0] = [entry for entry in added.split(os.pathsep) if entry]
    os.chdir(workspace)
    for name, data in order["files"].items():
        directory = os.path.dirname(name)
        if directory:
            os.makedirs(directory, exist_ok=True)
        with open(name, "wb") as file:
            file.write(data)
    if order["cpu_s"]:
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        soft = order["cpu_s"] if hard == resource.RLIM_INFINITY else min(order["cpu_s"], hard)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1 if hard == resource.RLIM_INFINITY else hard))


def _keep(order: Mapping[str, Any], directory: str) -> str | None:
    """The program's text as a file, for what looks for it there: inspect, multiprocessing, other interpreters."""
    if order["script"] is None:
        return None
    path = f"{directory}/{order['argv'][1]}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    view = memoryview(order["script"])
    while view:
        view = view[os.write(fd, view) :]
    os.close(fd)
    return path


def _run_python(source: bytes, argv: list[str], path: str) -> int:
    main = types.ModuleType("__main__")
    main.__dict__["__file__"] = path
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [path, *argv[2:]]
    sys.path.insert(0, os.getcwd())
    gc.enable()
    try:
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as stop:
        return _exit_code(stop.code)
    except BaseException as error:
        _show(error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    _flush(sys.stdout)
    print(code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    _flush(sys.stdout)
    error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)  # without our own frame
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as broken:
        print(f"Error in sys.excepthook: {broken!r}", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)


def _run_command(argv: list[str]) -> int:
    """Become another program. Comes back only if there is none."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        _become(argv)
    except (FileNotFoundError, NotADirectoryError):
        os.write(2, f"{argv[0]}: not found in the sandbox; use another, or install it where this runs\n".encode())
        return 127
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        return 126


def _become(argv: list[str]) -> NoReturn:
    """`os.execvp`, which would import the module of warnings first."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, os.environ)
    refused: OSError = FileNotFoundError()
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        try:
            os.execve(os.path.join(directory, argv[0]), argv, os.environ)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            refused = error
    raise refused


def _end(code: int, supervisor: int | None, flush_c: Callable[[], None]) -> NoReturn:
    """What the interpreter does at its end, without tearing itself down."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    _flush(sys.stdout)
    _flush(sys.stderr)
    flush_c()
    if supervisor is not None and code in DONE:
        try:
            os.kill(supervisor, DONE[code])
        except OSError:
            pass
        else:
            time.sleep(_NOTICED_S)  # the supervisor takes our measure and ends us; if not, the wait status says it too
    os._exit(code)


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (OSError, ValueError, AttributeError):
        pass


def _read_exactly(fd: int, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = os.readv(fd, [view])
        if not count:
            return None
        view = view[count:]
    return data
