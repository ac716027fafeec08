"""What a cell, its zygote and the host tell each other over sockets that no program ever holds. Fixed shapes."""

from __future__ import annotations

import struct

BORN = b"B"  # with the pidfd of the cell's first process
READY = b"R"  # locked; the program comes next
FAILED = b"F"  # a step of the plan failed
EXITED = b"X"
IMPORTING = b"I"  # the zygote imports a module ahead; silence after it names the culprit
NOT_IMPORTED = b"N"
UP = b"U"  # the zygote waits for orders
PID = b"P"  # the zygote's pid, as the host sees it
USAGE = b"S"  # what a cell that serves many runs has used so far
COPIED = b"C"  # bytes of a dataset so far
FILES = b"D"  # of a cell that shows them: with a descriptor of the program's /tmp
MADE = b"M"  # a volume, with a descriptor of its root; or what else was asked

TELL_USAGE = b"T"  # from the host to a cell that serves many runs: one has ended
INTERRUPT = b"K"  # likewise: stop the run that goes on, and what it has started

MAX_FRAME = 4096
_EXIT = struct.Struct("<iQQB")
_USAGE = struct.Struct("<QQB")
_PID = struct.Struct("<I")
_BETWEEN = "\0"  # texts of a frame
_MAX_TEXT = 512

DISK_FULL, MEMORY_KILL, PROCESSES_HIT, HAD_OTHERS = 1, 2, 4, 8


class Garbled(ConnectionError):
    """Not from a process that speaks as we do: the same as one that went away."""


class Exit:
    __slots__ = ("cpu_ns", "flags", "max_rss_bytes", "status")

    def __init__(self, status: int, cpu_ns: int, max_rss_bytes: int, flags: int):
        self.status = status  # as wait() gives it
        self.cpu_ns = cpu_ns
        self.max_rss_bytes = max_rss_bytes
        self.flags = flags


class Failure:
    __slots__ = ("detail", "errno", "step")

    def __init__(self, step: str, errno: int, detail: str):
        self.step = step
        self.errno = errno
        self.detail = detail


def exited(status: int, cpu_ns: int, max_rss_bytes: int, flags: int) -> bytes:
    return EXITED + _EXIT.pack(status, cpu_ns, max_rss_bytes, flags)


def usage(cpu_ns: int, max_rss_bytes: int, flags: int) -> bytes:
    return USAGE + _USAGE.pack(cpu_ns, max_rss_bytes, flags)


def parse_usage(frame: bytes) -> tuple[int, int, int]:
    cpu_ns, max_rss_bytes, flags = _unpacked(_USAGE, frame)
    return cpu_ns, max_rss_bytes, flags


def parse_exit(frame: bytes) -> Exit:
    return Exit(*_unpacked(_EXIT, frame))


def failed(step: str, errno: int, detail: str) -> bytes:
    return FAILED + _joined(step, str(errno), detail)


def parse_failure(frame: bytes) -> Failure:
    step, errno, detail = _split(frame, 3)
    return Failure(step, _number(errno), detail)


def answer(number: int, frame: bytes) -> bytes:
    """To an order: with its number, since whoever gave it may have stopped listening."""
    return _PID.pack(number) + frame


def parse_answer(data: bytes) -> tuple[int, bytes]:
    return (_PID.unpack_from(data)[0], data[_PID.size :]) if len(data) >= _PID.size else (0, b"")


def order(number: int, content: bytes) -> bytes:
    return _PID.pack(number) + content


def up(landlock_abi: int) -> bytes:
    return UP + bytes([landlock_abi])


def parse_up(frame: bytes) -> int:
    if len(frame) != 2:
        raise Garbled
    return frame[1]


def importing(name: str) -> bytes:
    return IMPORTING + name.encode()


def not_imported(name: str, why: str) -> bytes:
    return NOT_IMPORTED + _joined(name, why)


def parse_name(frame: bytes) -> str:
    return frame[1:].decode("utf-8", "replace")


def parse_not_imported(frame: bytes) -> tuple[str, str]:
    name, why = _split(frame, 2)
    return name, why


def pid(number: int) -> bytes:
    return PID + _PID.pack(number)


def parse_pid(frame: bytes) -> int:
    number: int = _unpacked(_PID, frame)[0]
    return number


def copied(name: str, size: int) -> bytes:
    return COPIED + _joined(str(size), name)


def parse_copied(frame: bytes) -> tuple[str, int]:
    size, name = _split(frame, 2)
    return name, _number(size)


def _joined(*texts: str) -> bytes:
    return _BETWEEN.join(text[:_MAX_TEXT] for text in texts).encode("utf-8", "backslashreplace")


def _split(frame: bytes, count: int) -> list[str]:
    """So many texts; the last may have anything in it."""
    found = frame[1:].decode("utf-8", "replace").split(_BETWEEN, count - 1)
    if len(found) != count:
        raise Garbled
    return found


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise Garbled
    return int(text)


def _unpacked(shape: struct.Struct, frame: bytes) -> tuple[int, ...]:
    if len(frame) != 1 + shape.size:
        raise Garbled
    return shape.unpack_from(frame, 1)
