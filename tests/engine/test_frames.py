"""Frames come from processes that a hostile program shares a machine with: fixed shapes, bounded."""

from __future__ import annotations

import errno

import pytest

from fumehood.engine import frames


def test_an_exit_comes_back_as_it_was_sent() -> None:
    frame = frames.exited(0x0137, 123_456_789_012, 7 << 40, frames.DISK_FULL | frames.MEMORY_KILL)
    end = frames.parse_exit(frame)
    assert frame[:1] == frames.EXITED
    assert (end.status, end.cpu_ns, end.max_rss_bytes) == (0x0137, 123_456_789_012, 7 << 40)
    assert end.flags == frames.DISK_FULL | frames.MEMORY_KILL


def test_a_failure_comes_back_as_it_was_sent() -> None:
    frame = frames.failed("private_tree", errno.ENOSPC, "mount tmpfs on /mnt: Ünïcode")
    failure = frames.parse_failure(frame)
    assert frame[:1] == frames.FAILED
    assert (failure.step, failure.errno, failure.detail) == (
        "private_tree",
        errno.ENOSPC,
        "mount tmpfs on /mnt: Ünïcode",
    )


def test_a_long_detail_is_cut_so_that_the_frame_fits() -> None:
    frame = frames.failed("open_trees", errno.ENOENT, "\N{PILE OF POO}" * 100_000)
    assert len(frame) <= frames.MAX_FRAME
    assert len(frames.parse_failure(frame).detail) == 512


def test_up_carries_the_landlock_abi_and_pid_the_number() -> None:
    assert frames.parse_up(frames.up(0)) == 0
    assert frames.parse_up(frames.up(7)) == 7
    assert frames.parse_pid(frames.pid(4_194_304)) == 4_194_304


def test_every_kind_is_one_byte_of_its_own() -> None:
    kinds = [frames.BORN, frames.READY, frames.FAILED, frames.EXITED, frames.UP, frames.PID]
    assert len(set(kinds)) == len(kinds)
    assert all(len(kind) == 1 for kind in kinds)


def test_every_flag_of_an_exit_is_a_bit_of_its_own() -> None:
    assert frames.DISK_FULL ^ frames.MEMORY_KILL ^ frames.PROCESSES_HIT == 7


@pytest.mark.parametrize("body", [b"", b"\0" * 5, b"\0" * 100])
def test_an_exit_of_another_size_is_refused(body: bytes) -> None:
    with pytest.raises(frames.Garbled):
        frames.parse_exit(frames.EXITED + body)
