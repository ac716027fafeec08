"""SANDBOX_FALLBACK: another backend, for as long as the chosen one cannot be had.

It is used only where no code has run yet, never to mend a bad setting, and only if it gives what `require` asks for;
its results say so in `meta["fallback"]`.

The chosen backend is asked again by later calls, so that they use it once it is back. Where that is slow to fail, as
with an engine that hangs, it is asked so rarely that the asking takes a twentieth of the time; see `_PATIENCE`.
"""

from __future__ import annotations

import time
from typing import NoReturn

from . import registry
from .backends.base import Backend, Sandbox, SandboxSpec
from .config import Settings
from .errors import BackendError, BackendUnavailable, ConfigurationError, ExtraMissing, FumehoodError
from .execution import hold_to
from .planning import Plan, Planner
from .types import Receipt

UNAVAILABLE = (BackendUnavailable, ExtraMissing)
_PATIENCE = 20  # times as long as the last failure took, before the chosen backend is asked again
_MOST_S = 300.0

_NO_OUTAGE = (0.0, BackendUnavailable, "")
_outages: dict[tuple[object, ...], tuple[float, type[BackendError], str]] = {}  # until when not to ask; what it said


def open_chosen(settings: Settings) -> tuple[Backend, Spare | None]:
    """The backend that `settings.type` names, and its spare if there is one."""
    if settings.fallback in (None, settings.type):  # `--backend local` with both variables set means what it says
        return registry.open_backend(settings), None
    spare = Spare(settings)
    try:
        return registry.open_backend(settings), spare
    except UNAVAILABLE as error:
        return _Absent(settings.type, error), spare


class Spare:
    """Of one sandbox or session. Made and checked when it is needed first, then kept."""

    def __init__(self, settings: Settings) -> None:
        assert settings.fallback is not None
        if not registry.is_known(settings.fallback):
            raise ConfigurationError(
                f"SANDBOX_FALLBACK names no backend: {settings.fallback[:100]!r}. Set it to one of:"
                f" {', '.join(registry.names())}; or unset it"
            )
        self.settings = settings._replace(type=settings.fallback, fallback=None)
        self.backend: Backend | None = None
        self._chosen = settings.type
        own = [name for name in settings._fields if name.startswith(f"{settings.type}_")]
        self._key = (settings.type, *(getattr(settings, name) for name in own))  # who fails for one fails for all such
        self._planner = Planner(self.settings)

    def heed_outage(self) -> None:
        """Raise what the chosen backend said last, if it need not be asked just now."""
        until, kind, said = _outages.get(self._key, _NO_OUTAGE)
        if time.monotonic() < until:
            raise kind(said)

    async def opened(self, error: BackendError) -> Backend:
        """The other backend, checked; or else `error`, with the reason why it is not used."""
        backend: Backend | None = None
        try:
            backend = registry.open_backend(self.settings)
            hold_to(self.settings.require, await backend.check())
        except FumehoodError as why:
            if backend is not None:
                await backend.close()
            raise type(error)(
                f"{str(error).rstrip('.')}. The fallback {self.settings.type!r} (SANDBOX_FALLBACK) was not used: {why}"
            ) from why
        if self.backend is None:
            self.backend = backend
        else:  # another thread was faster
            await backend.close()
        return self.backend

    def used(self, error: BackendError, took_s: float) -> dict[str, str]:
        """Remember the outage. The stamp of results and receipts."""
        now = time.monotonic()
        until = max(_outages.get(self._key, _NO_OUTAGE)[0], now + min(_MOST_S, _PATIENCE * took_s))
        for key in [key for key, outage in list(_outages.items()) if outage[0] < now]:
            _outages.pop(key, None)
        _outages[self._key] = until, type(error), str(error)
        return {"from": self._chosen, "to": self.settings.type, "reason": str(error)}

    def plan(self, plan: Plan) -> Plan:
        """The same execution there, with the limits that hold there."""
        return self._planner.moved(plan, self.settings.type)

    async def close(self) -> None:
        backend, self.backend = self.backend, None
        if backend is not None:
            await backend.close()


class _Absent(Backend):
    """One that could not even be opened: its package is not here."""

    def __init__(self, name: str, error: BackendError) -> None:
        self.name = name
        self._kind, self._said = type(error), str(error)

    async def check(self) -> Receipt:
        self._fail()

    async def create(self, spec: SandboxSpec) -> Sandbox:  # noqa: ARG002
        self._fail()

    async def close(self) -> None:
        pass

    def _fail(self) -> NoReturn:
        raise self._kind(self._said)
