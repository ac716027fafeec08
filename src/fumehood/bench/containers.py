"""Containers: a one-shot of the Docker backend beside `docker run` with its flags, and what else is as slow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from .. import config
from ..api import OneShot, get_sandbox
from ..errors import FumehoodError
from . import candidates
from .samples import Candidate, Series, interleave

PAUSE_S = 0.6  # for what a one-shot left to be made: it would run beside the next candidate otherwise
DOCKER_RUN = "docker run, same flags"
WARM = "fumehood in Docker, one waiting"
COLD = "fumehood in Docker, none waiting"
_BARE = "bare subprocess, after a pause"
_PROGRAM = ["-I", "-c", candidates.CODE]


def measure(rounds: int, progress: Callable[[int, int], None], say: Callable[[str], None]) -> list[Series]:
    """Nothing if none of them is to be had here."""
    with ExitStack() as stack:
        chosen = [*_docker(stack, say), *_gvisor()]
        if not chosen:
            return []
        return interleave([candidates.bare(name=_BARE), *chosen], rounds, progress, PAUSE_S)


def docker_run(body: dict[str, Any]) -> list[str]:
    """The flags of `docker run` that ask for what `body` asks the engine for."""
    host = body["HostConfig"]
    argv = ["run", "--rm", "--read-only", f"--network={host['NetworkMode']}", f"--user={body['User']}"]
    argv += [f"--cap-drop={name}" for name in host["CapDrop"]]
    argv += [f"--security-opt={option}" for option in host["SecurityOpt"]]
    argv += [f"--memory={host['Memory']}", f"--memory-swap={host['MemorySwap']}", f"--cpus={host['NanoCpus'] / 1e9}"]
    argv += [f"--pids-limit={host['PidsLimit']}", f"--ipc={host['IpcMode']}", f"--cgroupns={host['CgroupnsMode']}"]
    argv += [f"--ulimit={limit['Name']}={limit['Soft']}:{limit['Hard']}" for limit in host["Ulimits"]]
    argv += [f"--tmpfs={path}:{options}" for path, options in host["Tmpfs"].items()]
    argv += [f"--env={name}" for name in body["Env"]]
    argv += [f"--workdir={body['WorkingDir']}", f"--hostname={body['Hostname']}", "--log-driver=none"]
    if "Runtime" in host:
        argv.append(f"--runtime={host['Runtime']}")
    return [*argv, body["Image"]]


def _docker(stack: ExitStack, say: Callable[[str], None]) -> Iterator[Candidate]:
    try:
        warm = stack.enter_context(_sandbox(warm_cells=2))
        warm.check()
        cold = stack.enter_context(
            _sandbox(warm_cells=0, docker_memory_limit="255m")
        )  # or it would take what waits for warm
    except FumehoodError as error:
        say(f"Docker: skipped, {error}")
        return
    yield Candidate(WARM, candidates.execution(warm))
    yield Candidate(COLD, candidates.execution(cold))
    if not shutil.which("docker"):
        say("docker run: skipped, there is no docker command here")
        return
    host = warm.settings.docker_host
    docker = ["docker"] if host is None else ["docker", "--host", host]
    run = docker_run(_body(warm.settings))
    yield from candidates.if_it_works(Candidate(DOCKER_RUN, candidates.command([*docker, *run, "python3", *_PROGRAM])))
    yield from _docker_exec(stack, docker, run)


def _sandbox(**settings: Any) -> OneShot:
    return get_sandbox(type="docker", store_code="never", fallback=None, **settings)


def _body(settings: config.Settings) -> dict[str, Any]:
    from ..backends.base import SandboxSpec
    from ..backends.docker.body import create_body

    spec = SandboxSpec(settings.limits(), settings.network)
    return create_body(settings, spec, settings.in_container(spec.limits), len(os.sched_getaffinity(0)))


def _docker_exec(stack: ExitStack, docker: list[str], run: list[str]) -> Iterator[Candidate]:
    """One container for every program: what many do, with nothing between one program and the next."""
    start = [*docker, run[0], "--detach", *run[1:], "sleep", "900"]
    started = subprocess.run(start, capture_output=True, text=True, check=False)
    if started.returncode == 0:
        container = started.stdout.strip()
        stack.callback(subprocess.run, [*docker, "kill", container], capture_output=True, check=False)
        call = candidates.command([*docker, "exec", container, "python3", *_PROGRAM])
        yield from candidates.if_it_works(Candidate("docker exec, container kept", call))


def _gvisor() -> Iterator[Candidate]:
    argv = ["runsc", "--network=none", "do", sys.executable, *_PROGRAM]
    if shutil.which(argv[0]):
        yield from candidates.if_it_works(Candidate("gVisor (runsc do)", candidates.command(argv)))
