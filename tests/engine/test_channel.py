"""What the host takes from an interpreter that the program shares."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fumehood.engine.channel import Channel, TooMuch
from fumehood.guest.wire import FRAME, RESULTS_COUNT
from fumehood.types import Display


def framed(*said: Any) -> bytes:
    bodies = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in said]
    return b"".join(FRAME.pack(len(body)) + body for body in bodies)


def begun(channel: Channel) -> int:
    run: int = json.loads(channel.begin("")[FRAME.size :])["id"]
    return run


def test_all_that_a_run_may_show_is_heard() -> None:
    channel = Channel()
    for _ in range(3):
        run = begun(channel)
        shown = [{"id": run, "event": "display", "data": {"text/plain": "1"}}] * RESULTS_COUNT
        said = framed({"id": run, "event": "began"}, *shown, {"id": run, "event": "done", "exit_code": 3})
        assert list(channel.hear(said)) == [*[Display({"text/plain": "1"})] * RESULTS_COUNT, None]
        assert channel.done == 3


@pytest.mark.parametrize("frame", [b"", b"{}", b"[", {"id": 0}])
def test_small_frames_without_end_are_more_than_an_interpreter_says(frame: Any) -> None:
    channel = Channel()
    begun(channel)
    with pytest.raises(TooMuch):
        list(channel.hear(framed(*[frame] * 10_000)))
