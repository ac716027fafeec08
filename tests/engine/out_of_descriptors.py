"""Runs one kind of call again and again with a few more descriptors each time: out_of_descriptors.py CALL LEVEL FILE.

Prints as JSON how often it was refused and how often it was served, and what was left behind or went wrong.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from process_view import descriptors, groups, nameless_groups, roots, wait_for_housekeeper

from fumehood import FumehoodError, get_sandbox, open_session
from fumehood.engine import engine as engines
from fumehood.engine.cgroups import Group

ROOM = 64  # more than any call takes
SERVED = 3  # in a row: no more can fail
MOST_S = 250.0


def execute(sandbox: Any) -> None:
    assert sandbox.execute("print(1)").stdout == "1\n"


def command(session: Any) -> None:
    assert session.exec(["echo", "1"]).stdout == "1\n"


def session(datasets: dict[str, str] | None = None, **settings: Any) -> None:
    with open_session(start_retries=0, datasets=datasets or {}, **settings) as opened:
        assert opened.run("print(1)").stdout == "1\n"


def engine(expected: list[Any], **settings: Any) -> None:
    """The first call of all, which starts a zygote and finds what this host can give."""
    with get_sandbox(**settings) as sandbox:
        result = sandbox.execute("print(1)")
    assert result.stdout == "1\n"
    expected[:] = expected or [result.meta["isolation"]]
    assert [result.meta["isolation"]] == expected, "a passing want made it weaker"


def end_engines() -> None:
    for root in roots():
        root.close()
    engines._engines.clear()
    engines._given.clear()


def hold_all(held: list[int]) -> None:
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass


def changes(before: dict[int, str], held: list[Group]) -> dict[str, Any]:
    """Against what there was; some is released in the background. `held`: groups of the session that is open."""
    until = time.monotonic() + MOST_S
    while True:
        now = descriptors()
        found = {
            "new": {fd: path for fd, path in now.items() if before.get(fd) != path},
            "gone": {fd: path for fd, path in before.items() if now.get(fd) != path},
            "groups that no engine knows": nameless_groups(),
            "groups in use": [str(group.paths) for group in groups() if group not in held and not group.is_free()],
        }
        found = {name: what for name, what in found.items() if what}
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.02)


def undisturbed(call: Callable[[], None]) -> None:
    """Repeats the call while another process of this user has many descriptors in flight: the kernel counts by user."""
    until = time.monotonic() + MOST_S
    while True:
        try:
            return call()
        except FumehoodError as error:
            if "on their way" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.05)


def attempt(call: Callable[[], None], spare: int) -> str:
    """The call, with so many descriptors to spare: "" or what was said instead."""
    held: list[int] = []
    hold_all(held)
    for _ in range(spare):
        os.close(held.pop())
    try:
        undisturbed(call)
        return ""
    except FumehoodError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for fd in held:
            os.close(fd)


def prepared(kind: str, settings: dict[str, Any], dataset: str, stack: ExitStack) -> Callable[[], None]:
    match kind:
        case "execute":
            return partial(execute, stack.enter_context(get_sandbox(**settings)))
        case "command":
            opened = stack.enter_context(open_session(start_retries=0, **settings))
            opened.run("x = 1")
            return partial(command, opened)
        case "session":
            return partial(session, **settings)
        case "dataset":
            return partial(session, {"data.csv": dataset}, **settings)
        case _:
            return partial(engine, [], **settings)


def main(kind: str, level: str, dataset: str) -> dict[str, Any]:
    refused, served, problems = [], 0, []
    with ExitStack() as stack:
        call = prepared(kind, {"isolation": level, "store_code": "never", "warm_cells": 0}, dataset, stack)
        for _ in range(2):
            call()
        if kind == "engine":
            end_engines()
        wait_for_housekeeper()
        before = descriptors()
        highest = max(before) + ROOM
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
        held = [group for group in groups() if group._held]
        spare = 0
        while served < SERVED and spare < ROOM:
            said = attempt(call, spare)
            if not said:
                served += 1
            elif "ulimit -n" in said:
                refused.append(spare)
            else:
                problems.append({"spare": spare, "said": said})
            undisturbed(call)  # with all of them again
            if kind == "engine":
                end_engines()
            if found := changes(before, held):
                problems.append({"spare": spare, "said": said, **found})
                before = descriptors()
            spare += 1
    return {"refused": refused, "served": served, "problems": problems}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
