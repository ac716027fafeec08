"""From a failed step to what the user can do about it.

Settings of the machine are read here only to explain a failure that has happened, never to predict one.
"""

from __future__ import annotations

import errno
import os

from ..descriptors import exhausted
from ..errors import EngineFailed
from .flags import SHORTAGES
from .frames import Failure

_APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_DEBIAN = "/proc/sys/kernel/unprivileged_userns_clone"
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")

_USER_NAMESPACE_STEPS = frozenset(
    {"namespaces", "clone", "unshare", "map_ids", "private_mounts", "bound_kernel_objects"}
)
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")
_MOUNT_STEPS = frozenset({"open_trees", "new_root", "attach_trees", "enter_root", "private_tree", "uncover"})


def errno_name(number: int) -> str:
    return errno.errorcode.get(number, str(number)) if number else "no answer"


def what_failed(failure: Failure) -> str:
    if failure.step == "internal":
        return f"a sandbox broke, which is a defect in fumehood: {failure.detail}"
    return f"a sandbox could not be made: {failure.step} failed with {errno_name(failure.errno)}"


def not_made(failure: Failure) -> EngineFailed:
    return EngineFailed(f"{what_failed(failure)}; {fix_for(failure.step, failure.errno)}")


def is_shortage(step: str, number: int) -> bool:
    """Whether the next try may go well: no reason for a weaker level, which would last as long as this process."""
    if step in _USER_NAMESPACE_STEPS and number == errno.ENOSPC:
        return all(_flag(f"/proc/sys/user/max_{kind}_namespaces") != "0" for kind in _NAMESPACES)
    return number in SHORTAGES


def fix_for(step: str, number: int) -> str:
    """One sentence that names the cause, as far as it can be told, and the next step."""
    if step in _USER_NAMESPACE_STEPS | _MOUNT_STEPS and number in (errno.EPERM, errno.EACCES):
        if _flag(_APPARMOR) == "1":
            return (
                "AppArmor restricts unprivileged user namespaces here (Ubuntu's default): give this interpreter a "
                "profile with the rule `userns,` in /etc/apparmor.d"
            )
        if _in_container():
            return (
                "the container's seccomp profile or AppArmor refuses namespaces: run it with --security-opt "
                "seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined, or rely "
                "on the container as the boundary"
            )
        if _flag(_DEBIAN) == "0":
            return "unprivileged user namespaces are off: sysctl kernel.unprivileged_userns_clone=1"
        return "a security policy of this host refuses user namespaces to this process; ask its administrator"
    if step in _USER_NAMESPACE_STEPS and number == errno.ENOSPC:
        return "the limit of user namespaces is reached or zero: raise sysctl user.max_user_namespaces"
    if said := exhausted(OSError(number, os.strerror(number))):
        return said
    if step in _USER_NAMESPACE_STEPS and number == errno.EINVAL:
        return "this kernel was built without CONFIG_CHECKPOINT_RESTORE or without a kind of namespace"
    if step in ("proc", "root_proc"):
        return "the outer /proc is masked, as in most containers: run it with --security-opt systempaths=unconfined"
    if step == "control_group":
        if _in_container():
            return "containers are seldom given any: bound the whole of it with its own --memory and --pids-limit"
        return "start it alone in a delegated group: systemd-run --user --scope -p Delegate=yes python …"
    if number in (errno.EAGAIN, errno.ENOMEM):
        return (
            "this user, this host or the group that this process is in is short of processes or memory: try again with "
            "fewer at once, or raise the limit (ulimit -u, pids.max)"
        )
    if number == errno.ENOSYS:
        return "this kernel lacks the call; Linux 5.12 or newer is needed for the sealed level"
    if step == "seccomp":
        return "this kernel or the surrounding sandbox refuses seccomp filters"
    if step == "landlock":
        return (
            "this kernel has no Landlock (CONFIG_SECURITY_LANDLOCK and lsm=landlock), so the host's files stay visible"
        )
    return "see `fumehood doctor`"


def _in_container() -> bool:
    return any(os.path.exists(mark) for mark in _CONTAINER_MARKS)


def _flag(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
