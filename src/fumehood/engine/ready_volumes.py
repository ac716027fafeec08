"""Volumes that wait for a session, each with an interpreter: made ahead once somebody has opened one of their kind."""

from __future__ import annotations

import functools
import os

from ..errors import FumehoodError
from ..types import Limits
from . import housekeeper
from .interpreter import Interpreter
from .root import Root
from .volume import Volume, Wanted, open_volume
from .zygotes import SetupFailed, ZygoteGone

_MOST = 2  # of different kinds, for each root
_ready: dict[Root, dict[Limits, Volume]] = {}


def take(root: Root, limits: Limits) -> Volume | None:
    """One that nobody has used, if there is one."""
    volume = _ready.get(root, {}).pop(limits, None)
    if volume is not None and not volume.has_spare(Interpreter):
        housekeeper.later(volume.close)
        volume = None
    return volume


def make_later(root: Root, limits: Limits) -> None:
    housekeeper.suggest(functools.partial(_make, root, limits))


def _make(root: Root, limits: Limits) -> None:
    if limits in _ready.get(root, {}):
        return
    try:
        volume = open_volume(root, Wanted(limits), keeps_spares=True)
    except (FumehoodError, ZygoteGone, SetupFailed, OSError):
        return  # whoever opens a session meets the same, and tells its caller
    if not volume.keeps_spares or not volume.prepare(Interpreter):
        volume.close()
        return
    if root not in _ready:
        root.when_closed(functools.partial(_drop, root))
    kept = _ready.setdefault(root, {})
    for oldest in list(kept)[: max(0, len(kept) + 1 - _MOST)]:
        if (left := kept.pop(oldest, None)) is not None:
            left.close()
    kept[limits] = volume
    if root.is_closed:
        _drop(root)


def _drop(root: Root) -> None:
    kept = _ready.pop(root, {})
    while kept:
        kept.popitem()[1].close()


def _drop_all() -> None:
    for root in list(_ready):
        _drop(root)


def _after_fork() -> None:
    _ready.clear()


housekeeper.when_quiet(_drop_all)
os.register_at_fork(after_in_child=_after_fork)
