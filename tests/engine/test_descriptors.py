"""A process that runs out of descriptors is told so, keeps none of what failed, and goes on when it has some again."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood import IsolationUnavailable, get_sandbox
from fumehood.engine import frames, lend
from fumehood.errors import EngineFailed
from support import HANG_S

pytestmark = pytest.mark.usefixtures("few_descriptors")

PROGRAM = Path(__file__).with_name("out_of_descriptors.py")


@pytest.mark.parametrize(
    ("call", "level"),
    [
        ("execute", "sealed"),
        ("execute", "confined"),
        ("execute", "process"),
        ("command", "sealed"),
        ("command", "process"),
        ("session", "sealed"),
        ("session", "process"),
        ("dataset", "sealed"),
        ("engine", "sealed"),
        ("engine", "auto"),
    ],
)
def test_a_call_that_failed_for_want_of_descriptors_keeps_none_and_the_next_one_works(
    call: str, level: str, tmp_path: Path
) -> None:
    try:
        with get_sandbox(isolation=level, warm_cells=0) as sandbox:
            sandbox.check()
    except IsolationUnavailable as missing:
        pytest.skip(f"no {level} sandbox on this machine: {missing}")
    data = tmp_path / "data.csv"
    data.write_text("1\n", "utf-8")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), call, level, str(data)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert len(found["refused"]) > 3, "wherever it fails in the making"
    assert found["served"] > 0


FIRST = """
import json, os, resource, sys
from fumehood import FumehoodError, get_sandbox

def said():
    try:
        with get_sandbox(store_code="never", warm_cells=0) as sandbox:
            return sandbox.check().level
    except FumehoodError as error:
        return str(error)
    except Exception as error:
        return repr(error)

found = []
for spare in range(1, 28):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            pass
        for _ in range(spare):
            os.close(held.pop())
        first = said()
        for fd in held:
            os.close(fd)
        os.write(writing, json.dumps([first, said()]).encode())
        os.close(writing)
        sys.exit()
    os.close(writing)
    with open(reading) as answer:
        found.append(json.load(answer))
    os.wait()
print(json.dumps(found))
"""


def test_the_first_call_of_a_process_is_refused_in_our_words_and_never_weaker() -> None:
    """Modules of ours are loaded then, too."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, encoding="utf-8", timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (level,) = {second for _, second in found}
    assert [first for first, _ in found if first != level and "ulimit -n" not in first] == []
    assert found[0][0] != level
    assert found[-1][0] == level


def test_a_dataset_that_was_lent_and_found_no_descriptor_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel drops what there is no room for; a volume without it would end the zygote that makes it."""

    def receive(*_: object) -> tuple[bytes, list[int], int, None]:
        return frames.MADE, [], socket.MSG_CTRUNC, None

    (tmp_path / "data.csv").write_text("1\n", "utf-8")
    monkeypatch.setattr(socket, "recv_fds", receive)
    with pytest.raises(EngineFailed, match="ulimit -n") as caught:
        lend.lend([("data.csv", str(tmp_path / "data.csv"))], None, reader=None, disk_bytes=1 << 20, progress=None)
    assert os.strerror(errno.EMFILE) in str(caught.value)
