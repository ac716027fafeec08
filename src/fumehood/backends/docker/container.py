"""One container: made, met, and removed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import Any

from ...config import Settings
from ...errors import BackendError, BackendUnavailable, EngineFailed, FumehoodError
from ...guest import wire
from ...one_line import one_line
from ...types import Limits, Receipt
from . import body, receipt
from .client import Client, Refused, translated
from .link import Link

KILLED = 128 + signal.SIGKILL
_MAKE_S = 30.0
_FATE_S, _ASK_AGAIN_S = 10.0, 0.05  # the streams of a container end before its engine knows that it has
_COMING_S, _GOING_S, _TRY_S = 0.5, 10.0, 0.05  # a container that may still be made, one that is being removed
_REBUILD = "build it again with `fumehood image build`"
LOST: dict[str | None, str] = {
    "killed": "the container was killed or removed from outside while the program ran (docker kill, docker rm -f,"
    " a restart of the daemon); try again",
    "daemon": "the Docker daemon went away while the program ran; start it, then try again",
    None: "the container went away while the program ran, or the Docker daemon did; try again",
}
GONE = "the container is gone: killed or removed from outside, or ended with the Docker daemon; try again"


class Container:
    """`name` is known before it exists, so that whoever gives up can remove what comes into being."""

    receipt: Receipt
    link: Link

    def __init__(self, client: Client):
        self.name = f"fumehood-{os.urandom(8).hex()}"
        self.client = client
        self.made_at = time.monotonic()
        self.inside: dict[str, Any] = {}
        self.inspected: dict[str, Any] = {}
        self.is_removed = False
        self._doing = "create a container"
        self._creating: asyncio.Future[Any] | None = None
        self._fate: asyncio.Task[str | None] | None = None

    async def make(self, settings: Settings, limits: Limits, request: dict[str, Any]) -> None:
        """Ready for programs, its protections checked."""
        try:
            async with asyncio.timeout(_MAKE_S):
                await self._make(settings, limits, request)
        except TimeoutError:
            raise BackendUnavailable(
                f"the Docker engine at {self.client.address.shown} did not {self._doing} in {_MAKE_S:g} s;"
                " try again, or restart Docker daemon"
            ) from None

    @property
    def is_coming(self) -> bool:
        """The engine has not said that it is there."""
        return self._creating is None or not self._creating.done()

    @property
    def is_alive(self) -> bool:
        return not self.is_removed and self.link.is_open

    async def kill(self) -> None:
        """From outside, when the guest does not answer."""
        try:
            await self.client.ask("POST", f"/containers/{self.name}/kill")
        except (Refused, BackendError):
            pass  # it is gone, or whoever would know is

    async def fate(self) -> str | None:
        """What ended it, if it was not us: memory, or a key of LOST."""
        if self._fate is None:
            self._fate = asyncio.ensure_future(self._look())
        return await asyncio.shield(self._fate)

    async def remove(self) -> bool:
        """Whatever state it is in. False: nobody answers, and it may be there when somebody does again."""
        self.close()
        self.is_removed = True
        if self._creating is not None:
            await asyncio.wait([self._creating])
        may_come = self._creating is not None and self._creating.cancelled()
        began = time.monotonic()
        while True:
            try:
                await self.client.ask("DELETE", f"/containers/{self.name}", force="1", v="1")
                return True
            except Refused as refused:
                waited_s = time.monotonic() - began
                if refused.status == 404 and not (may_come and waited_s < _COMING_S):
                    return True
                if refused.status not in (404, 409) or waited_s >= _GOING_S:  # 409: another request is removing it
                    return False
            except BackendError:
                return False
            await asyncio.sleep(_TRY_S)

    def close(self) -> None:
        if hasattr(self, "link"):
            self.link.close()

    # --- inside

    async def _make(self, settings: Settings, limits: Limits, request: dict[str, Any]) -> None:
        image = settings.docker_image
        labelled = {**request, "Labels": body.labels(settings)}
        self._creating = asyncio.ensure_future(
            self._ask("create a container", "POST", "/containers/create", labelled, name=self.name)
        )
        self._creating.add_done_callback(_heard)
        await asyncio.shield(self._creating)  # the engine would go on without us
        self._doing = "attach to a container"
        try:
            reader, writer = await self.client.attach(self.name)
        except Refused as refused:
            raise translated(refused, self._doing) from None
        self.link = Link(reader, writer, self._ended)
        await self._ask(f"start a container of {image}", "POST", f"/containers/{self.name}/start")
        await self._meet(image, limits)
        self.inspected = await self._ask("show a container", "GET", f"/containers/{self.name}/json")
        _check_runtime(settings.docker_runtime, self.inspected)
        self.receipt = receipt.write(request, self.inspected, self.inside)
        receipt.hold_to(settings.require, self.receipt)

    def _ended(self) -> None:
        """Whoever reads from it will ask why."""

    async def _meet(self, image: str, limits: Limits) -> None:
        try:
            hello = parsed_hello(await asyncio.shield(self.link.hello))
        except asyncio.CancelledError:
            if not self.link.hello.cancelled():
                raise
            await self._explain(image, limits)
        if hello is None:
            raise BackendUnavailable(f"the image {image} is of another version of fumehood: {_REBUILD}")
        self.inside = hello

    async def _explain(self, image: str, limits: Limits) -> None:
        """It ended before it spoke."""
        if await self.fate() == "memory":
            raise EngineFailed(
                f"a container needs more than {limits.memory_bytes >> 20} MB of memory to start:"
                " raise DOCKER_MEMORY_LIMIT and SANDBOX_MEMORY_MB"
            )
        said = self.link.said.splitlines()
        why = f" ({one_line(said[-1][:300])})" if said else ""
        raise BackendUnavailable(
            f"the image {image} has no guest that starts{why}: unset DOCKER_IMAGE, or build yours FROM the one that"
            " `fumehood image build` makes"
        )

    async def _look(self) -> str | None:
        try:
            async with asyncio.timeout(_FATE_S):
                while (state := await self._state()).get("Running"):
                    await asyncio.sleep(_ASK_AGAIN_S)
        except Refused as refused:
            return "killed" if refused.status == 404 else None
        except TimeoutError:
            return None
        except FumehoodError:
            return "daemon"
        if state.get("ExitCode") != KILLED:
            return None
        return "memory" if state.get("OOMKilled") else "killed"

    async def _state(self) -> dict[str, Any]:
        return (await self.client.ask("GET", f"/containers/{self.name}/json")).get("State") or {}

    async def _ask(self, doing: str, verb: str, path: str, content: object = None, **params: str) -> Any:
        self._doing = doing
        try:
            return await self.client.ask(verb, path, content, **params)
        except Refused as refused:
            raise translated(refused, doing) from None


def _heard(creating: asyncio.Future[Any]) -> None:
    """Nobody may be there any more to hear why it failed."""
    if not creating.cancelled():
        creating.exception()


def parsed_hello(payload: bytes) -> dict[str, Any] | None:
    """What the guest sees of its container; None if it is not one that speaks as we do."""
    try:
        hello = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(hello, dict) or hello.get("protocol") != wire.PROTOCOL:
        return None
    is_ours = all(isinstance(hello.get(name, {}), dict) for name in ("capabilities", "cgroup", "mounts"))
    interfaces = hello.get("interfaces", [])
    is_ours &= isinstance(interfaces, list) and all(isinstance(name, str) for name in interfaces)
    return hello if is_ours else None


def _check_runtime(asked: str | None, inspected: dict[str, Any]) -> None:
    """Podman takes the word and does not act on it."""
    used = (inspected.get("HostConfig") or {}).get("Runtime")
    if asked not in (None, used):
        raise BackendUnavailable(
            f"DOCKER_RUNTIME is {asked!r} and the engine used {used!r} instead: make it the engine's own default there,"
            " and unset DOCKER_RUNTIME"
        )
