"""Lines that nobody reads: dropped, counted, and said when somebody reads again."""

from __future__ import annotations

import os
import threading

from fumehood.server import writer
from support import HANG_S


def _lost(count: int) -> bytes:
    return b"lost %d\n" % count


def test_what_there_is_no_room_for_is_counted_and_said_later() -> None:
    reads, writes = os.pipe()
    lines = writer.Writer(writes, _lost)
    size, count = 4096, 1000  # more than a pipe and the queue hold
    for _ in range(count):
        lines.put(b"x" * (size - 1) + b"\n")
    assert not lines.flush(0)
    found: list[bytes] = []

    def read() -> None:
        with os.fdopen(reads, "rb") as file:
            found.extend(file)

    reader = threading.Thread(target=read)
    reader.start()
    assert lines.flush(HANG_S)
    os.close(writes)
    reader.join(HANG_S)
    said = sum(int(line.split()[1]) for line in found if line.startswith(b"lost"))
    assert said > 0
    assert said + sum(line.startswith(b"x") for line in found) == count


def test_a_full_disk_loses_lines_and_nothing_else() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    lines = writer.Writer(fd, _lost)
    for _ in range(3):
        lines.put(b"x\n")
    assert lines.flush(HANG_S)
    os.close(fd)
    lines.put(b"x\n")  # closed, too
    assert lines.flush(HANG_S)
