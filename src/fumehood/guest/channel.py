"""The stream of frames between the worker and its host, and the interrupts that must not tear it."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # C alone: nothing of the program's is asked
import _thread
import builtins
import fcntl
import os
import time
import types

from .plain import fit, to_json
from .wire import BUNDLE_BYTES, FRAME, MAX_FRAME, RESULTS_BYTES, RESULTS_COUNT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # see the worker's

_read, _write, _close, _dup2 = os.read, os.write, os.close, os.dup2
_getpid, _exit, _ident = os.getpid, os._exit, _thread.get_ident
_install, _mask, _SIGINT = _signal.signal, _signal.pthread_sigmask, _signal.SIGINT
_BLOCK, _SET = _signal.SIG_BLOCK, _signal.SIG_SETMASK
_ioctl, _NOT_TAKEN, _sleep = fcntl.ioctl, 0x5411, time.sleep  # SIOCOUTQ

_RESERVE = 1 << 12  # of a run's results, for the note that there are no more
_LOOKS, _LOOK_S = 2000, 0.0001
_NO_MORE = f"... (further results left out: one run may show {RESULTS_BYTES >> 20} MiB in {RESULTS_COUNT:,} bundles)"


def inside(interrupts: Interrupts, function: Callable[..., Any], *arguments: Any) -> Any:
    """Beneath this frame an interrupt may strike: who calls it catches everything."""
    if interrupts.is_pending:
        interrupts.strike()
    return function(*arguments)


class Interrupts:
    """SIGINT stops what the program does and nothing of ours: elsewhere it waits, and between runs it is nobody's."""

    def __init__(self) -> None:
        self._others: set[int] = {*map(int, _signal.valid_signals())} - {_SIGINT}
        self._blocked: set[int] = _mask(_BLOCK, ())
        self.is_run = False  # somebody waits for a run, and means it
        self.is_held = False  # a frame is on its way
        self.is_pending = False
        self.has_struck = False

    def begin(self) -> None:
        self.is_pending = self.has_struck = False
        self.is_run = True

    def restore(self) -> None:
        """Whatever the program did to SIGINT; its other signals find it again."""
        _install(_SIGINT, self._handle)
        _mask(_SET, self._blocked - {_SIGINT})

    def end(self) -> None:
        """Between runs no handler of the program's is called."""
        self.is_run = False
        self._blocked = _mask(_BLOCK, self._others)

    def strike(self) -> NoReturn:
        self.is_pending, self.has_struck = False, True
        raise KeyboardInterrupt

    def _handle(self, _number: int, frame: types.FrameType | None) -> None:
        if not self.is_run:
            return
        if not self.is_held:
            while frame is not None:
                if frame.f_code is inside.__code__:
                    self.strike()
                frame = frame.f_back
        self.is_pending = True


class Channel:
    """The stream of frames, out of the program's way and closed in whatever it forks."""

    def __init__(self, read_fd: int, write_fd: int, interrupts: Interrupts) -> None:
        import json

        self._pid, self._thread = _getpid(), _ident()
        self._interrupts = interrupts
        decoder: Any = json.JSONDecoder()
        self._parse = decoder.scan_once  # C all the way: asks nothing of the program's builtins
        self._in, self._out = move_up(read_fd), move_up(write_fd)
        for fd in {read_fd, write_fd}:
            if fd > 2:
                _close(fd)
        if 0 in (read_fd, write_fd):
            _dup2(_nothing(), 0)
        self._lock = _thread.allocate_lock()
        self._run: int | None = None
        self._bytes_left = self._count_left = 0
        self._is_heard = True

    def close(self) -> None:
        for fd in {self._in, self._out}:
            try:
                _close(fd)
            except OSError:
                pass
        self._in = self._out = -1

    def receive(self) -> dict[str, Any] | None:
        header = self._read_exactly(FRAME.size)
        if header is None:
            return None
        self._interrupts.begin()  # what is sent from now on is meant for this run
        (size,) = FRAME.unpack(header)
        body = self._read_exactly(size) if size <= MAX_FRAME else None
        if body is None:
            return None
        request: dict[str, Any] = self._parse(body.decode(), 0)[0]
        self._write_frame(f'{{"id":{int(request["id"])},"event":"began"}}'.encode())
        return request

    def begin(self, run: int) -> None:
        self._run, self._bytes_left, self._count_left = run, RESULTS_BYTES - _RESERVE, RESULTS_COUNT
        self._is_heard = True

    def show(self, bundle: dict[str, Any], *, is_last: bool = False) -> None:
        """Send one value in several forms, from any thread, as long as the run lasts and has room for it."""
        if _getpid() != self._pid:
            return
        room = min(BUNDLE_BYTES, self._bytes_left - _RESERVE)
        body = fit(bundle, room) if room > 0 else b""
        self._send("display", body)
        if not is_last and _ident() == self._thread:
            self._wait_until_heard()

    def finish(self, exit_code: int, error: str | None, interrupted: bool) -> None:
        outcome = {"exit_code": exit_code, "error": error, "interrupted": interrupted}
        self._send("done", to_json(outcome).encode("utf-8", "replace"))

    def _send(self, event: str, body: bytes) -> None:
        on_main = _ident() == self._thread
        if on_main:
            self._interrupts.is_held = True
        try:
            with self._lock:
                self._send_locked(event, body)
        finally:
            if on_main:
                self._interrupts.is_held = False
        if on_main and event == "display" and self._interrupts.is_pending:
            self._interrupts.strike()

    def _send_locked(self, event: str, body: bytes) -> None:
        if self._run is None:
            return  # a thread that goes on after its run
        head = f'{{"id":{self._run},"event":"{event}",'.encode()
        if event == "done":
            self._run = None
            self._write_frame(head + body[1:])
            return
        if not self._count_left:
            return
        self._count_left -= 1
        if not body or not self._count_left or self._bytes_left < len(body) + _RESERVE:
            self._count_left = 0
            body = to_json({"text/plain": _NO_MORE}).encode()
        frame = head + b'"data":' + body + b"}"
        self._bytes_left -= len(frame)
        self._write_frame(frame)

    def _wait_until_heard(self) -> None:
        """What is printed goes another way, and would overtake it. Nobody waits long, nor twice for a deaf host."""
        looks = 0
        try:
            while self._is_heard and any(_ioctl(self._out, _NOT_TAKEN, bytes(4))):
                looks += 1
                self._is_heard = looks < _LOOKS
                _sleep(_LOOK_S)
        except OSError:
            self._is_heard = False

    def _write_frame(self, body: bytes) -> None:
        view = memoryview(FRAME.pack(len(body)) + body)
        try:
            while view:
                view = view[_write(self._out, view) :]
        except OSError:
            _exit(0)  # nobody listens

    def _read_exactly(self, size: int) -> bytearray | None:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = _read(self._in, size - len(data))
            except OSError:
                return None
            except BaseException:
                continue  # a handler of the program's, by way of one of its threads
            if not chunk:
                return None
            data += chunk
        return data


def move_up(fd: int) -> int:
    """A copy where the program hardly looks."""
    import fcntl

    for lowest in (1000, 200, 50):
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:
            pass
    return os.dup(fd)


def _nothing() -> int:
    try:
        return os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        reader, writer = os.pipe()
        _close(writer)
        return reader
