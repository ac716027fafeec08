"""What is measured: a bare subprocess, fumehood, and the alternatives that are installed here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

from ..api import OneShot, get_sandbox
from ..errors import EngineFailed
from ..sync_session import Session, open_session
from ..types import ExecutionResult
from .samples import Candidate

CODE = "print(6 * 7)"
OUTPUT = "42\n"
DATA_STACK = ("numpy", "polars", "sklearn")
DATA_CODE = "import numpy, polars, sklearn\nprint(6 * 7)"

BARE = "bare subprocess"
COLD = "fumehood, no warm cell"
WARM = "fumehood, warm cell"
SESSION = "fumehood, run in a session"
COMMAND = "fumehood, command in a session"
NEW_SESSION = "fumehood, new session and a run"
KERNEL = "ipykernel, running"
BARE_DATA = "bare subprocess, data stack"
COLD_DATA = "fumehood, no warm cell, data stack"
WARM_DATA = "fumehood, warm cell, data stack"

_BUBBLEWRAP = [
    *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
    *("--ro-bind", "/", "/", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"),
]


def bare(code: str = CODE, name: str = BARE) -> Candidate:
    """What an agent framework without a sandbox does."""
    return Candidate(name, command([sys.executable, "-I", "-c", code]))


def ours(stack: ExitStack, name: str, code: str = CODE, **settings: Any) -> Candidate:
    """A sealed sandbox through the public API."""
    return Candidate(name, execution(stack.enter_context(sealed(**settings)), code))


def sealed(**settings: Any) -> OneShot:
    return get_sandbox(type="local", isolation="sealed", store_code="never", **settings)


def sessions(stack: ExitStack) -> Iterator[Candidate]:
    """A call that finds its variables, a command beside them, and what it costs to begin."""

    def opened() -> Session:
        return open_session(type="local", isolation="sealed", store_code="never")

    session = stack.enter_context(opened())

    def new() -> None:
        with opened() as fresh:
            check(fresh.run(CODE))

    yield Candidate(SESSION, lambda: check(session.run(CODE)))
    yield Candidate(COMMAND, lambda: check(session.exec(["echo", "42"])))
    yield Candidate(NEW_SESSION, new)


def has_data_stack() -> bool:
    return all(find_spec(name) for name in DATA_STACK)


def alternatives(stack: ExitStack, docker_image: str) -> Iterator[Candidate]:
    """Whichever of the others is installed and works here; the slow ones are in `containers`."""
    if shutil.which("bwrap"):
        yield from if_it_works(
            Candidate("bubblewrap", command(["bwrap", *_BUBBLEWRAP, sys.executable, "-I", "-c", CODE]))
        )
    if find_spec("ipykernel") and find_spec("jupyter_client"):
        yield from if_it_works(Candidate(KERNEL, _kernel(stack)))
    if find_spec("smolagents"):
        yield from if_it_works(Candidate("smolagents, in process", _smolagents()))
    if find_spec("llm_sandbox"):
        yield from if_it_works(Candidate("llm-sandbox, running", _llm_sandbox(stack, docker_image)))


def execution(sandbox: OneShot, code: str = CODE) -> Callable[[], None]:
    return lambda: check(sandbox.execute(code))


def check(result: ExecutionResult) -> None:
    """That it printed what it should have."""
    if result.stdout != OUTPUT:
        raise EngineFailed(f"a sandbox printed {result.stdout!r}, {result.stderr!r}")


def if_it_works(candidate: Candidate) -> Iterator[Candidate]:
    """The candidate, or nothing."""
    try:
        candidate.call()
    except Exception:  # whatever another project's code raises: it is not to be had here
        return
    yield candidate


def command(argv: list[str]) -> Callable[[], None]:
    """A program of this machine, from start to end."""

    def call() -> None:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        if done.stdout != OUTPUT:
            raise EngineFailed(f"{argv[0]} printed {done.stdout!r}, {done.stderr!r}")

    return call


def _kernel(stack: ExitStack) -> Callable[[], None]:
    from jupyter_client.manager import start_new_kernel  # type: ignore[import-not-found,unused-ignore]

    manager, client = start_new_kernel()
    stack.callback(manager.shutdown_kernel, now=True)
    stack.callback(client.stop_channels)

    def call() -> None:
        printed: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        client.execute_interactive(CODE, output_hook=hear, timeout=30)
        if "".join(printed) != OUTPUT:
            raise EngineFailed(f"the kernel printed {printed!r}")

    return call


def _smolagents() -> Callable[[], None]:
    from smolagents.local_python_executor import LocalPythonExecutor  # type: ignore[import-not-found,unused-ignore]

    executor = LocalPythonExecutor(additional_authorized_imports=[])
    executor.send_tools({})

    def call() -> None:
        printed = executor(CODE)
        logs = getattr(printed, "logs", None) or printed[1]
        if str(logs) != OUTPUT:
            raise EngineFailed(f"smolagents printed {logs!r}")

    return call


def _llm_sandbox(stack: ExitStack, image: str) -> Callable[[], None]:
    from llm_sandbox import SandboxSession  # type: ignore[import-not-found,unused-ignore]

    session = stack.enter_context(SandboxSession(lang="python", image=image))

    def call() -> None:
        printed = session.run(CODE).stdout
        if printed != OUTPUT:
            raise EngineFailed(f"llm-sandbox printed {printed!r}")

    return call
