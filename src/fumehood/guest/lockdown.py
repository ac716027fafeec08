"""What a program in a container may not do any more: the few kernel calls for it that Python does not have.

The only file of the guest that imports ctypes. Every function raises OSError when the kernel refuses.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

TYPE_CHECKING = False

_libc = ctypes.PyDLL(None, use_errno=True)
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_INSTRUCTION = 8


def hide() -> None:
    """Out of the reach of others with our user id: no ptrace, none of our descriptors and memory in /proc."""
    _prctl(_PR_SET_DUMPABLE, 0)


def show() -> None:
    _prctl(_PR_SET_DUMPABLE, 1)


def no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install_filter(program: bytes) -> None:
    """Beneath any filter that there is: what one of them refuses is refused."""
    if not program or len(program) % _INSTRUCTION:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    instructions = ctypes.create_string_buffer(program, len(program))
    count_and_place = struct.pack("HxxxxxxQ", len(program) // _INSTRUCTION, ctypes.addressof(instructions))
    holder = ctypes.create_string_buffer(count_and_place, len(count_and_place))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(holder))


def flush_c_streams() -> None:
    """What C libraries printed and still hold in their buffers."""
    _libc.fflush(None)


def _prctl(option: int, second: int, third: int = 0) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(second), ctypes.c_ulong(third), zero, zero) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
