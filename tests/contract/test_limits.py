"""Whatever a program does, the result comes in time, says which limit it hit, and nothing is left."""

from __future__ import annotations

import textwrap

import pytest

from fumehood.execution import TRUNCATED
from marked import new_marker
from pace import timed_out

from .test_programs import nothing_left

STUBBORN = {
    "busy": "while True: pass",
    "asleep": "import time; time.sleep(3600)",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "ignores signals": """
        import signal, time
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True:
            time.sleep(0.01)
    """,
    "left the session": """
        import os, time
        if os.fork(): os.wait()
        os.setsid()
        if os.fork(): os.wait()
        time.sleep(3600)
    """,
    "closed its outputs": "import os, time; os.closerange(0, 256); time.sleep(3600)",
    "waits for stdin of a child": "import subprocess; subprocess.run(['sleep', '3600'])",
    "floods": "while True: print('spam' * 1000)",
    "forks": """
        import os, time
        while True:
            try: os.fork()
            except OSError: time.sleep(0.01)
    """,
}


@pytest.mark.parametrize("code", STUBBORN.values(), ids=STUBBORN)
def test_a_time_out_ends_everything(box, code):
    """Whoever does not end it waits for an hour."""
    box = box(processes=40, output_kill_mb=1_000_000)
    timed_out(
        lambda timeout: box.run(f"print('begins', flush=True)\n{textwrap.dedent(code)}", timeout=timeout), "begins"
    )


def test_a_time_out_leaves_no_process_of_the_tree(box):
    marker = new_marker()
    code = f"""
        import os, subprocess, time
        for _ in range(3): subprocess.Popen(["sleep", "{marker}"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            subprocess.run(["sleep", "{marker}"])
        print("started", flush=True)
        time.sleep(3600)
    """
    result, _ = timed_out(lambda timeout: box.run(code, timeout=timeout), "started")
    assert result.stdout == "started\n"
    assert nothing_left(box, marker)


def test_what_was_printed_before_the_time_out_is_kept(box):
    code = "print('so far', flush=True)\nwhile True: pass"
    result, _ = timed_out(lambda timeout: box.run(code, timeout=timeout), "so far")
    assert result.stdout == "so far\n"


def test_memory(box):
    code = """
        import time
        keep = []
        for _ in range(600): keep.append(bytearray(b"x" * 1024 * 1024))
        print("survived", flush=True)
        time.sleep(3600)  # where a process watches and not the kernel, it may come late
    """
    result = box(memory_mb=150).run(code)
    assert (result.meta["reason"], result.exit_code) == ("memory", 137), result
    assert result.stdout == "" or "cgroup" not in result.meta["isolation"]["memory"]["mechanism"]
    assert "150 MB" in result.stderr
    assert "SANDBOX_MEMORY_MB" in result.stderr


def test_memory_counts_for_the_whole_tree(box):
    code = """
        import os, sys, time
        for _ in range(6):
            if os.fork() == 0:
                keep = bytearray(b"x" * 60 * 1024 * 1024)
                time.sleep(3600)
        sys.exit(os.wait()[1] != 0)
    """
    result = box(memory_mb=200).run(code)
    assert result.meta["reason"] == "memory"
    assert result.exit_code in (1, 137)  # a child was killed, or the tree


def test_memory_within_the_limit_is_fine(box):
    assert box(memory_mb=200).out("keep = bytearray(b'x' * 60 * 1024 * 1024); print(len(keep))") == "62914560"


def test_processes(box):
    code = """
        import os, time
        for _ in range(200):
            if os.fork() == 0: time.sleep(3600)
    """
    result = box(processes=30).run(code)
    assert result.exit_code == 1
    assert "BlockingIOError" in result.stderr
    check_named_the_limit_of_processes(result)


def test_threads_count_as_processes(box):
    code = """
        import threading, time
        for _ in range(200): threading.Thread(target=time.sleep, args=[3600], daemon=True).start()
    """
    result = box(processes=30).run(code)
    assert result.exit_code == 1, str(result)
    check_named_the_limit_of_processes(result)


def check_named_the_limit_of_processes(result):
    if "of this user" in result.meta["isolation"]["processes"]["mechanism"]:
        return  # others of this user, the tests beside us among them, can use it up: then nobody can tell
    assert result.meta["reason"] == "processes"
    assert "SANDBOX_PROCESSES" in result.stderr


def test_disk(box):
    code = "with open('big', 'wb') as file:\n    for _ in range(64): file.write(b'x' * 1024 * 1024)"
    result = box(disk_mb=16).run(code)
    assert (result.meta["reason"], result.exit_code) == ("disk", 1)
    assert "No space left on device" in result.stderr
    assert "SANDBOX_DISK_MB" in result.stderr


def test_inodes(box):
    result = box(inodes=200).run("for number in range(2000): open(f'{number}', 'w').close()")
    assert (result.meta["reason"], result.exit_code) == ("disk", 1)
    assert "SANDBOX_INODES" in result.stderr


def test_file_size(box):
    result = box(file_mb=2).run("open('big', 'wb').write(b'x' * 5 * 1024 * 1024)")
    assert result.exit_code == 1
    assert "File too large" in result.stderr
    assert result.meta["reason"] in ("disk", "error")


def test_open_files(box):
    result = box(open_files=64).run("keep = [open('/dev/null') for _ in range(200)]")
    assert (result.meta["reason"], result.exit_code) == ("error", 1)
    assert "Too many open files" in result.stderr


def test_cpu_time(box):
    result = box(cpu_sec=1).run("while True: pass")
    assert result.exit_code == 128 + 24 or result.exit_code == 137
    assert "SANDBOX_CPU_SEC" in result.stderr


def test_too_much_output(box):
    result = box(output_kill_mb=4).run("import sys\nwhile True: sys.stdout.write('x' * 65536)")
    assert (result.exit_code, result.meta["reason"], result.meta["truncated"]) == (137, "output", True)
    assert TRUNCATED in result.stdout
    assert "SANDBOX_OUTPUT_KILL_MB" in result.stderr


def test_usage_is_plausible(box):
    code = "import time\nkeep = bytearray(b'x' * 80 * 1024 * 1024)\nwhile time.process_time() < 0.4: pass"
    usage = box.run(code).meta["usage"]
    assert 0.3 <= usage["cpu_s"] < 60
    assert 80 * 1024 * 1024 <= usage["max_rss_bytes"] < 400 * 1024 * 1024
