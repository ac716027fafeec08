"""The trees that a root shows, once more for each cell: an overlay has inodes of its own.

So a lock or a watch in there does not meet the host's, nor another cell's. An overlay remembers what was looked up in
it, so that a long-lived one would not notice what is installed on the host: each serves one cell, or one volume.
"""

from __future__ import annotations

import os

from . import _syscalls as sys_calls
from .flags import NOTHING, SHORTAGES
from .jail import StepFailed

TYPE_CHECKING = False  # see zygote
if TYPE_CHECKING:
    from collections.abc import Sequence

_READ_ONLY = sys_calls.MOUNT_ATTR_RDONLY | sys_calls.MOUNT_ATTR_NOSUID | sys_calls.MOUNT_ATTR_NODEV
_LAYERS = f".:{NOTHING}"  # the kernel wants two


class Overlays:
    """Made ahead by the zygote, put in place by whoever they are for."""

    def __init__(self, places: Sequence[str]):
        self._places = tuple(places)
        self._made: list[tuple[int, str]] = []

    def prepare(self) -> None:
        """A tree of which the kernel makes no overlay stays as it is. A shortage is no reason to do without."""
        if self._made or not self._places:
            return
        try:
            for place in self._places:
                try:
                    os.chdir(place)
                    self._made.append((sys_calls.overlay(_LAYERS, _READ_ONLY), place))
                except OSError as error:
                    if error.errno in SHORTAGES:
                        self.forget()
                        raise StepFailed("overlays", error) from error
        finally:
            os.chdir("/")
        self._places = tuple(place for _, place in self._made)

    def prepare_ahead(self) -> None:
        """While nobody waits for them; whoever needs them is told of a shortage."""
        try:
            self.prepare()
        except StepFailed:
            pass

    def attach(self) -> None:
        """In the mount namespace of one cell or volume, before anything covers or copies a tree."""
        for tree, place in self._made:
            try:
                sys_calls.move_mount(tree, place)
            except OSError as error:
                raise StepFailed("overlays", error) from error

    def forget(self) -> None:
        for tree, _ in self._made:
            os.close(tree)
        self._made.clear()
