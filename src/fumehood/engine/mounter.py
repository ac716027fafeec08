"""Lends files of the host to a volume: makes detached, read-only mounts of them and hands these over.

A zygote sees nothing of the host's tree any more. This process does, for the moment that it lives: it is started like a
zygote, with an empty environment and the host's socket as descriptor 3, and ends when it has answered.
"""

from __future__ import annotations

import _socket as socket  # see zygote
import marshal
import os
import sys

from ..guest import rlimits
from . import _syscalls as sys_calls
from . import frames
from .flags import NEWNS, NEWUSER, SHORTAGES
from .jail import Jail, StepFailed, send_with

TYPE_CHECKING = False  # importing typing would double the start
if TYPE_CHECKING:
    from typing import Any, NoReturn

_CONTROL = 3
_MAX_ORDER = 1 << 20
_STAGING = "/tmp"
_DATASETS, _OVERLAYS, _NOTHING = f"{_STAGING}/data", f"{_STAGING}/overlays", f"{_STAGING}/nothing"
# The second layer is there because the kernel wants two. What a layer says of redirects leads nowhere.
_OVERLAY = f"lowerdir=.:{_NOTHING},redirect_dir=nofollow,metacopy=off"
_CHUNK = 1 << 22
_READ_ONLY = sys_calls.MOUNT_ATTR_RDONLY | sys_calls.MOUNT_ATTR_NOSUID | sys_calls.MOUNT_ATTR_NODEV
_DATA = _READ_ONLY | sys_calls.MOUNT_ATTR_NOEXEC


def main() -> NoReturn:
    os.umask(0o022)  # a copy that nobody but the host could read would be of no use
    rlimits.allow_all_open_files()
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, _CONTROL)
    order: dict[str, Any] = marshal.loads(control.recv(_MAX_ORDER))
    try:
        trees = _make(control, order)
    except StepFailed as failure:
        control.send(frames.failed(failure.step, failure.errno, failure.detail))
    except OSError as error:
        control.send(frames.failed("lend", error.errno or 0, f"{error.strerror}: {error.filename}"))
    else:
        send_with(control, frames.MADE, *trees)
    sys.stderr.flush()
    os._exit(0)


def _make(control: socket.socket, order: dict[str, Any]) -> list[int]:
    jail = Jail()
    if order["uid"] == 0:
        sys_calls.unshare(NEWNS)
    else:
        sys_calls.unshare(NEWUSER | NEWNS)
        jail.apply([("map_ids", order["uid"], order["uid"], order["gid"])])
    jail.apply([("private_mounts",)])
    copied = {name: os.open(path, os.O_RDONLY) for name, path, is_copied in order["datasets"] if is_copied}
    lent = {name: _Lent(*os.path.split(path)) for name, path, is_copied in order["datasets"] if not is_copied}
    packages = _Lent(order["packages"], "") if order["packages"] is not None else None
    _stage(order["copied_bytes"], len(order["datasets"]))
    overlays = _Overlays()
    trees = []
    if order["datasets"]:
        for name, source in copied.items():
            _copy(control, name, source)
        for name, file in lent.items():
            sys_calls.move_mount(overlays.tree(file), _made(name))
        trees.append(_read_only(sys_calls.open_tree(_DATASETS), _DATA))
    if packages is not None:
        trees.append(_read_only(overlays.tree(packages), _READ_ONLY))
    return trees


class _Lent:
    """Found before the stage covers anything, since it may lie just there. `name` is "" for the directory itself."""

    def __init__(self, directory: str, name: str):
        path = os.path.join(directory, name)
        try:
            self.tree = sys_calls.open_tree(path)
            self.directory = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        self.name = name
        self.path = directory


class _Overlays:
    """Each directory as the one layer of a read-only overlay, which has inodes of its own: a lock or a watch there does
    not meet the host's, nor those of another volume. Of a directory only the file that was asked for is passed on.
    """

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def tree(self, lent: _Lent) -> int:
        """A detached mount of it; of the file itself where no overlay can be had, but for a shortage."""
        try:
            if lent.name and sys_calls.is_mount(lent.directory, lent.name):
                return lent.tree  # an overlay shows what lies beneath
            return sys_calls.open_tree(f"{self._of(lent)}/{lent.name}")
        except OSError as error:
            if error.errno in SHORTAGES:
                raise
            return lent.tree

    def _of(self, lent: _Lent) -> str:
        if lent.path not in self._made:
            place = f"{_OVERLAYS}/{len(self._made)}"
            os.makedirs(place, exist_ok=True)
            os.fchdir(lent.directory)  # named ".", it needs no escapes and the list of mounts does not tell it
            sys_calls.mount("lent", place, "overlay", sys_calls.MS_RDONLY, _OVERLAY)
            self._made[lent.path] = place
        return self._made[lent.path]


def _stage(size: int, files: int) -> None:
    flags = sys_calls.MS_NOSUID | sys_calls.MS_NODEV | sys_calls.MS_NOEXEC
    sys_calls.mount("data", _STAGING, "tmpfs", flags, f"size={size + (1 << 20)},nr_inodes={2 * files + 16},mode=0755")
    for directory in (_DATASETS, _OVERLAYS, _NOTHING):
        os.mkdir(directory)


def _made(name: str) -> str:
    path = f"{_DATASETS}/{name}"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    return path


def _read_only(tree: int, attributes: int) -> int:
    sys_calls.set_mount_attributes(tree, "", attributes, recursive=True)
    return tree


def _copy(control: socket.socket, name: str, source: int) -> None:
    target = os.open(_made(name), os.O_WRONLY)
    copied = 0
    while count := os.sendfile(target, source, copied, _CHUNK):
        copied += count
        control.send(frames.copied(name, copied))
