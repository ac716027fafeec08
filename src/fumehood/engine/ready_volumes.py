"""Volumes that wait for a session, each with an interpreter: made ahead once somebody has opened one of their kind."""

from __future__ import annotations

import functools

from ..errors import FumehoodError
from ..types import Limits
from . import housekeeper
from .interpreter import Interpreter
from .root import Root
from .volume import Volume, Wanted, open_volume
from .zygotes import SetupFailed, ZygoteGone

_MOST = 2  # of different kinds
_roots: list[Root] = []


def take(root: Root, limits: Limits) -> Volume | None:
    """One that nobody has used, if there is one. The next is made."""
    volume = root.ready_volumes.pop(limits, None)
    if volume is not None and not volume.has_spare(Interpreter):
        housekeeper.later(volume.close)
        volume = None
    return volume


def make_later(root: Root, limits: Limits) -> None:
    housekeeper.later(functools.partial(_make, root, limits))


def _make(root: Root, limits: Limits) -> None:
    if not housekeeper.wait_a_moment() or limits in root.ready_volumes:
        return
    try:
        volume = open_volume(root, Wanted(limits), keeps_spares=True)
    except (FumehoodError, ZygoteGone, SetupFailed, OSError):
        return  # whoever opens a session meets the same, and tells its caller
    if not volume.keeps_spares or not volume.prepare(Interpreter):
        volume.close()
        return
    while len(root.ready_volumes) >= _MOST:
        root.ready_volumes.pop(next(iter(root.ready_volumes))).close()
    root.ready_volumes[limits] = volume
    if root not in _roots:
        _roots.append(root)
    if root.is_closed:
        _drop(root)


def _drop(root: Root) -> None:
    while root.ready_volumes:
        root.ready_volumes.popitem()[1].close()


def _drop_all() -> None:
    while _roots:
        _drop(_roots.pop())


housekeeper.when_quiet(_drop_all)
