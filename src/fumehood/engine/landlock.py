"""Landlock: the file fence of level `confined`, where there is no root of our own."""

from __future__ import annotations

import os
import stat
import struct

from . import _syscalls as sys_calls

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from collections.abc import Sequence

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_ALL_V1 = (1 << 13) - 1
_REFER = 1 << 13  # ABI 2
_TRUNCATE = 1 << 14  # ABI 3
_IOCTL_DEV = 1 << 15  # ABI 5
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1, 2  # ABI 6
_READ_ONLY = _EXECUTE | _READ_FILE | _READ_DIR


def restrict(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Allow reading and executing beneath `readable`, everything beneath `writable`, and nothing else."""
    abi = sys_calls.landlock_abi()
    handled = _ALL_V1 | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0) | (_IOCTL_DEV if abi >= 5 else 0)
    scope = _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL if abi >= 6 else 0
    attributes = struct.pack("QQQ", handled, 0, scope)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = sys_calls.landlock_create_ruleset(attributes)
    try:
        for path in readable:
            _allow(ruleset, path, _READ_ONLY & handled)
        for path in writable:
            _allow(ruleset, path, handled)
        sys_calls.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)


def keep_signals_inside() -> None:
    """This process and its descendants can signal each other and nobody else. ABI 6.

    A ruleset that does not allow it denies every move from one directory to another, whatever it is about.
    """
    ruleset = sys_calls.landlock_create_ruleset(struct.pack("QQQ", _REFER, 0, _SCOPE_SIGNAL))
    try:
        _allow(ruleset, "/", _REFER)
        sys_calls.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _FILE_RIGHTS
        sys_calls.landlock_allow_beneath(ruleset, fd, access)
    finally:
        os.close(fd)
