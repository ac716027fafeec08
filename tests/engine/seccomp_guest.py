"""Runs under a filter: seccomp_guest.py FILE (or -, for none) calls|workload|network|int80|exec [PROGRAM ARG...]."""

from __future__ import annotations

import asyncio
import ctypes
import json
import mmap
import multiprocessing
import multiprocessing.shared_memory
import os
import resource
import select
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading

libc = ctypes.CDLL(None, use_errno=True)


def install(program: bytes) -> None:
    code = ctypes.create_string_buffer(program)
    fprog = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    for arguments in ((38, 1, 0), (22, 2, fprog)):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        if libc.prctl(*arguments, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


def calls() -> None:
    """Makes the calls given on stdin, prints the errno of each (0 if it worked)."""
    found = []
    for number, arguments in json.load(sys.stdin):
        ctypes.set_errno(0)
        done = libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments))
        found.append(ctypes.get_errno() if done == -1 else 0)
    print(json.dumps(found))


def double(value: int) -> int:
    return value * 2


async def echo() -> bytes:
    process = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = await process.communicate(b"asyncio")
    return out


def workload() -> None:
    """What ordinary programs do; an exception fails the test."""
    threads = [threading.Thread(target=double, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert subprocess.run(["sh", "-c", "ls / | sort | wc -l"], capture_output=True, check=True).stdout.strip()
    assert asyncio.run(echo()) == b"asyncio"
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(double, [1, 2, 3]) == [2, 4, 6]
    with multiprocessing.Manager() as manager:
        manager.dict()["key"] = 1
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
    memory.close()
    memory.unlink()
    left, right = socket.socketpair()
    left.sendall(b"pair")
    assert right.recv(4) == b"pair"
    left.close()
    right.close()
    with tempfile.TemporaryDirectory() as directory:
        database = sqlite3.connect(os.path.join(directory, "data.db"))
        database.execute("pragma journal_mode=wal")
        with database:
            database.execute("create table t (x)")
        database.close()
        os.mkfifo(os.path.join(directory, "fifo"))
        os.mknod(os.path.join(directory, "file"))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(directory, "socket"))
        listener.close()
        with open(os.path.join(directory, "copy"), "wb") as target, open(__file__, "rb") as source:
            os.sendfile(target.fileno(), source.fileno(), 0, 100)
            os.copy_file_range(source.fileno(), target.fileno(), 100)
            os.fsync(target.fileno())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    assert signal.sigtimedwait({signal.SIGALRM}, 280)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    assert resource.prlimit(os.getppid(), resource.RLIMIT_CORE)
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.nice(1)
    os.sync()
    os.close(os.memfd_create("memory"))
    os.close(os.pidfd_open(os.getpid()))
    select.epoll().close()
    for option, value in ((1, signal.SIGKILL), (4, 0), (4, 1), (36, 1), (15, b"name")):
        assert libc.prctl(option, value, 0, 0, 0) == 0, option
    assert os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1] == 0


async def talk() -> bytes:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"loopback\n")
        line = await reader.readline()
        writer.close()
        return line


def network() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
    assert asyncio.run(talk()) == b"loopback\n"
    assert socket.if_nameindex()


def int80() -> None:
    """getpid through the 32-bit entry of x86-64."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())


def execute() -> None:
    os.execvp(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    if sys.argv[1] != "-":
        with open(sys.argv[1], "rb") as file:
            install(file.read())
    {"calls": calls, "workload": workload, "network": network, "int80": int80, "exec": execute}[sys.argv[2]]()
