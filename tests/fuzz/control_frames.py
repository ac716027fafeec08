"""What cells and zygotes tell the host over sockets that no program holds: broken, it is one of our errors."""

from __future__ import annotations

import os

from fumehood.engine import frames
from fumehood.engine.cell import Cell
from fumehood.engine.interpreter import Interpreter
from fumehood.errors import EngineFailed
from fumehood.types import Exited, Receipt

from .target import Target

_PARSERS = (
    *(frames.parse_exit, frames.parse_usage, frames.parse_failure, frames.parse_answer, frames.parse_up),
    *(frames.parse_name, frames.parse_not_imported, frames.parse_pid, frames.parse_copied),
)


def check(data: bytes) -> None:
    """Each line is a frame."""
    said = data.split(b"\n")
    for frame in said:
        for parse in _PARSERS:
            try:
                parse(frame)
            except frames.Garbled:
                pass
    for kind in (Cell, Interpreter):
        _tell(kind(), said)


def _tell(cell: Cell, said: list[bytes]) -> None:
    control = cell._theirs[-1]
    try:
        cell.born(-1)
        cell.belong(
            sealed=True,
            group=None,
            receipt=Receipt("sealed", {}),
            is_orphan=lambda: False,
            kill_orphans=lambda: None,
        )
        if isinstance(cell, Interpreter):
            cell.begin("")
            cell._channel.done = 0
        for frame in said[:20]:
            if frame:
                os.write(control, frame[: frames.MAX_FRAME])
        os.close(cell._theirs.pop())
        for _ in range(100):
            event = cell.read(0)
            if isinstance(event, Exited) and not cell._events:
                break
        else:
            raise AssertionError("it does not end")
    except EngineFailed:
        pass
    finally:
        cell.close()


TARGET = Target("control_frames", check)
