"""What a cell that waits for a program costs in memory."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from ..api import OneShot

_FIELDS = ("Pss", "Private_Dirty")


def of_a_waiting_cell(sandbox: OneShot, cells: int) -> dict[str, float] | None:
    """Bytes of one, averaged over those that wait: its supervisor and the process that will be the program."""
    before = _cells()
    sandbox.execute("pass")
    deadline = time.monotonic() + 5
    while len(found := _cells() - before) < cells and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    totals = dict.fromkeys(_FIELDS, 0.0)
    counted = 0
    for pid in found:
        try:
            for process in (pid, *_children(pid)):
                text = Path(f"/proc/{process}/smaps_rollup").read_text()
                for name in _FIELDS:
                    match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
                    totals[name] += int(match[1]) * 1024 if match else 0
        except OSError:
            continue  # a supervisor cannot be looked into but by root
        counted += 1
    if not counted:
        return None
    return {"cells": counted, "pss": totals["Pss"] / counted, "private_dirty": totals["Private_Dirty"] / counted}


def _cells() -> set[int]:
    """First processes of cells: children of a child of ours that is the first of a pid namespace itself."""
    return {cell for zygote in _children(os.getpid()) for cell in _children(zygote)}


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(word) for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        pass
    return found
