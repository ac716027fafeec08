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
from .flags import NEWNS, NEWUSER
from .jail import Jail, StepFailed, send_with

TYPE_CHECKING = False  # importing typing would double the start
if TYPE_CHECKING:
    from typing import Any, NoReturn

_CONTROL = 3
_MAX_ORDER = 1 << 20
_STAGING = "/tmp"
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
    trees = []
    packages = order["packages"]
    packages_tree = _lent(packages, _READ_ONLY) if packages is not None else -1
    if order["datasets"]:
        trees.append(_data_tree(control, order["datasets"], order["copied_bytes"]))
    if packages is not None:
        trees.append(packages_tree)
    return trees


def _lent(path: str, attributes: int) -> int:
    try:
        tree = sys_calls.open_tree(path)
        sys_calls.set_mount_attributes(tree, "", attributes, recursive=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    return tree


def _data_tree(control: socket.socket, datasets: list[tuple[str, str, bool]], copied_bytes: int) -> int:
    """One directory with all of them: lent before it covers anything, since one may lie where it is built."""
    sources = [
        (name, os.open(path, os.O_RDONLY) if is_copied else _lent(path, _DATA), is_copied)
        for name, path, is_copied in datasets
    ]
    flags = sys_calls.MS_NOSUID | sys_calls.MS_NODEV | sys_calls.MS_NOEXEC
    size = copied_bytes + (1 << 20)
    sys_calls.mount("data", _STAGING, "tmpfs", flags, f"size={size},nr_inodes={len(sources) + 16},mode=0755")
    for name, source, is_copied in sources:
        target = f"{_STAGING}/{name}"
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        if is_copied:
            _copy(control, name, source, fd)
        else:
            sys_calls.move_mount(source, target)
        os.close(fd)
        os.close(source)
    return _lent(_STAGING, _DATA)


def _copy(control: socket.socket, name: str, source: int, target: int) -> None:
    copied = 0
    while count := os.sendfile(target, source, copied, _CHUNK):
        copied += count
        control.send(frames.copied(name, copied))
