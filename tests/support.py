"""Small helpers that several test modules share."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from fumehood.api import OneShot, get_sandbox
from fumehood.backends.base import Backend, Process, Sandbox, SandboxSpec
from fumehood.backends.fake import Answer, FakeBackend
from fumehood.guest import procfs
from fumehood.types import Command, ExecutionResult, Receipt

DRIVERS = ("direct", "async")
HANG_S = 280.0  # a deadline that only a hang reaches, on any machine; below the most that a program may be given (300)


class AsyncOnly(Backend):
    """A backend without its direct driver, so that synchronous callers go through the portal."""

    name = "async-only"

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    async def check(self) -> Receipt:
        return await self.inner.check()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await self.inner.create(spec)

    async def close(self) -> None:
        await self.inner.close()


def scripted(*answers: Answer, **settings: Any) -> tuple[OneShot, FakeBackend]:
    """A sandbox that gives these answers in turn, and the backend that noted what it was asked."""
    fake = FakeBackend(replies=answers)
    return get_sandbox(fake, **settings), fake


def execute(driver: str, sandbox: OneShot, code: str, *args: Any, **named: Any) -> ExecutionResult:
    """One execution by the driver named."""
    if driver == "direct":
        return sandbox.execute(code, *args, **named)
    return asyncio.run(sandbox.execute_async(code, *args, **named))


def wait_until(true: Callable[[], object], within_s: float = HANG_S) -> bool:
    """Whether it came true before the deadline."""
    until = time.monotonic() + within_s
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def zombies() -> set[str]:
    """Children of ours that ended and that nobody asked about."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if (state, parent) == ("Z", str(os.getpid())):
            found.add(pid)
    return found


class DeafProcess(Process):
    """Says nothing and does not end, not even when it is killed."""

    def __init__(self, receipt: Receipt) -> None:
        self.receipt = receipt
        self.kills = 0

    async def read(self, timeout_s: float | None = None) -> None:
        await asyncio.sleep(timeout_s or 0)

    def kill(self) -> None:
        self.kills += 1

    async def close(self) -> None:
        pass


class DeafBackend(AsyncOnly):
    """Its processes cannot be killed."""

    async def create(self, spec: SandboxSpec) -> Sandbox:  # noqa: ARG002
        receipt = await self.inner.check()

        class Deaf(Sandbox):
            async def start(self, command: Command) -> Process:  # noqa: ARG002
                return DeafProcess(receipt)

            async def close(self) -> None:
                pass

        return Deaf()


def is_stopped(pid: int) -> bool:
    """By SIGSTOP, which takes effect a moment later, and for each thread by itself."""
    return all(procfs.stat(f"{pid}/task/{thread}")[:1] == [b"T"] for thread in os.listdir(f"/proc/{pid}/task"))
