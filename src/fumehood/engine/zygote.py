"""The process that cells are forked from: builds the root once, then turns orders into cells until its host is gone.

Started as `python -I -S -c …` with an empty environment and the host's socket as descriptor 3. At level `sealed` it is
PID 1 of a pid namespace of its own, so that its end takes every cell with it.
"""

from __future__ import annotations

# The C parts of signal and socket: with what their wrappers import a zygote would start in half again the time, and
# every cell would pay for the enumerations they make.
import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import array
import errno
import gc
import marshal
import os
import select
import site
import sys
import time

from ..guest import rlimits, runner, worker
from ..guest.procfs import STARTED, stat
from . import _syscalls as sys_calls
from . import frames, sockets, tree
from .flags import CONTROL, FS, NEWNET, NEWNS
from .jail import Jail, StepFailed, program_may_be_seen, send_with
from .overlays import Overlays
from .supervisor import WATCHED, Supervisor

TYPE_CHECKING = False  # importing typing would double the start of a zygote
if TYPE_CHECKING:
    from typing import Any, NoReturn

BLOCKED = WATCHED | {signal.SIGINT}
_CONTROL, _HOST = CONTROL, 4
_INSIDE = "inside"
_MAX_ORDER = 1 << 18
_MAX_FDS = 8  # a program's three streams, its cell's socket to the host, the doors of its control group
_MANY_CELLS = 256
_QUIET_LOOKS = 2  # see supervisor
_ORPHANS_S = 5.0
_FETCHED, _NOT_FETCHED = b"y", b"n"
_NO_BIRTH_INTO_GROUP = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.E2BIG)


def main() -> NoReturn:
    inside = _INSIDE in sys.argv
    rlimits.allow_all_open_files()
    os.closerange((_HOST if inside else _CONTROL) + 1, 1 << 16)
    if not inside:
        os.dup2(os.pidfd_open(os.getppid()), _HOST)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, _CONTROL)
    blueprint: dict[str, Any] = marshal.loads(control.recv(_MAX_ORDER, socket.MSG_PEEK))
    if inside:
        sys_calls.keep_capabilities_to_itself()
        Jail().apply((("undumpable",),))  # an exec undoes it
    else:
        _build_root(control, blueprint)
    control.recv(_MAX_ORDER)
    for fd in (_CONTROL, _HOST):
        os.set_inheritable(fd, False)
    _find_packages(blueprint)
    os.environ.update(blueprint["env"])
    _forget_ourselves()
    if blueprint["preload"]:
        _preload(control, blueprint["preload"])
        sys.stderr.flush()  # what modules said at import is no program's output
        sys_calls.flush_c_streams()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # cells are reaped by the kernel
    signal.signal(signal.SIGINT, signal.default_int_handler)  # for programs: only they unblock it
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a killed program's lines are kept
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    _settle_memory()
    control.send(frames.up(_landlock_abi()))
    _serve(control, Overlays(blueprint["overlaid"]))


def _build_root(control: socket.socket, blueprint: dict[str, Any]) -> None:
    if blueprint["flags"]:
        os.umask(0o022)  # the host's may be 077, and a program could not enter the root that is made for it
        _move_into_namespaces(control, blueprint["flags"])
    try:
        Jail().apply(blueprint["steps"])
    except StepFailed as failure:
        _refuse(control, frames.failed(failure.step, failure.errno, failure.detail))
    if blueprint["again"]:  # from a file that the program could change on the host: start anew from the read-only view
        for fd in (_CONTROL, _HOST):
            os.set_inheritable(fd, True)
        sys_calls.keep_capabilities_over_exec()
        os.execve(sys.executable, [*blueprint["again"], _INSIDE], {})


def _move_into_namespaces(control: socket.socket, flags: int) -> None:
    try:
        pid, _ = sys_calls.clone(flags | sys_calls.CLONE_PARENT)
    except OSError as error:
        _refuse(control, frames.failed("namespaces", error.errno or 0, str(error)))
    if pid:
        control.send(frames.pid(pid))
        os._exit(0)


def _refuse(control: socket.socket, frame: bytes) -> NoReturn:
    control.recv(_MAX_ORDER)  # a socket closed with something unread would take our last word with it
    control.send(frame)
    os._exit(1)


def _find_packages(blueprint: dict[str, Any]) -> None:
    """What `site` would have done at start, now that the interpreter sees what the program will see."""
    sys.path.pop()  # where our own modules came from
    site.main()
    for directory in blueprint["packages"]:
        site.addsitedir(directory)


def _preload(control: socket.socket, names: list[str]) -> None:
    """Import what programs will want. Pools of threads would be gone after a fork: none are started."""
    changed = {"OPENBLAS_NUM_THREADS": "1", "_RJEM_MALLOC_CONF": "background_thread:false"}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    before_all = _shared_memory()
    for name in names:
        control.send(frames.importing(name))
        try:
            __import__(name)
        except BaseException as error:
            control.send(frames.not_imported(name, f"{type(error).__name__}: {error}"))
        if fresh := _shared_memory() - before_all:
            what = ", ".join(sorted(fresh))
            control.send(frames.not_imported(name, f"it maps memory that all programs would share and write: {what}"))
            os._exit(1)
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def _shared_memory() -> set[str]:
    """What is mapped here that a write of one fork changes for all others."""
    found, name = set(), ""
    with open("/proc/self/smaps", errors="replace", newline="\n") as file:
        for line in file:
            if line.startswith("VmFlags:"):
                if "sh" in line.split():
                    found.add(name)
            elif not line.partition(":")[0].isidentifier():
                name = line.split(None, 5)[-1].strip()
    return found


def _landlock_abi() -> int:
    try:
        return sys_calls.landlock_abi()
    except OSError:
        return 0


def _forget_ourselves() -> None:
    """The program finds no module of ours in its interpreter but may import the installed one."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "fumehood"]:
        del sys.modules[name]


def _serve(control: socket.socket, overlays: Overlays) -> NoReturn:
    network = _Network()
    volumes = _Volumes(overlays)
    orphans = _Orphans()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(_HOST, select.POLLIN)
    served = 0
    while True:
        ready = [fd for fd, _ in poll.poll(0 if served == 1 else None)]
        if not ready:  # the first cell is on its way: time for what every later one will want
            served += 1
            _import_common()
            network.prepare()
            overlays.prepare_ahead()
            continue
        if _HOST in ready and _CONTROL not in ready:
            os._exit(0)
        data, fds = _receive(control)
        if not data:
            os._exit(0)
        number, content = frames.parse_answer(data)
        try:
            answer, given = _obey(marshal.loads(content), fds, network, volumes, overlays, orphans)
        except StepFailed as failure:
            answer, given = frames.failed(failure.step, failure.errno, failure.detail), -1
        except Exception as error:  # one bad order must not end the cells of all others
            answer, given = frames.failed("order", getattr(error, "errno", None) or 0, repr(error)), -1
        _answer(control, frames.answer(number, answer), given)
        for fd in fds:
            os.close(fd)
        if served > 1:
            network.prepare()
            overlays.prepare_ahead()
        served += served < 2


def _obey(
    order: dict[str, Any],
    fds: list[int],
    network: _Network,
    volumes: _Volumes,
    overlays: Overlays,
    orphans: _Orphans,
) -> tuple[bytes, int]:
    """The answer, and the descriptor that goes with it."""
    if "kill_orphans" in order:
        orphans.kill()
        return frames.MADE, -1
    if "meet_limit" in order:
        return frames.BORN, _meet_limit(order, fds)
    if "make_volume" in order:
        return frames.MADE, volumes.make(order, fds)
    if "drop_volume" in order:
        volumes.drop(order["drop_volume"])
        return frames.MADE, -1
    if order["volume"] is None:
        overlays.prepare()
        return frames.BORN, _make_cell(network.use(order), fds, orphans, overlays)
    volumes.enter(order["volume"])
    try:
        return frames.BORN, _make_cell(network.use(order), fds, orphans, None)
    finally:
        volumes.leave()


def _answer(control: socket.socket, frame: bytes, fd: int) -> None:
    """`fd` -1: there is none."""
    if fd < 0:
        control.send(frame)
        return
    try:
        send_with(control, frame, fd)
    except OSError as error:  # too many are on their way already; what was made ends with the last hold on it
        _end(fd)
        control.send(frames.answer(frames.parse_answer(frame)[0], frames.failed("pass", error.errno or 0, str(error))))
    finally:
        os.close(fd)


def _end(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        pass  # not a process


class _Network:
    """The next cell's network namespace, made ahead: the kernel takes half a millisecond for one.

    The zygote enters it and the cell is born there; then the zygote leaves for the next. Where it may not, the cell
    makes its own.
    """

    def __init__(self) -> None:
        self._is_fresh = False
        self._wanted = False

    def prepare(self) -> None:
        if self._is_fresh or not self._wanted:
            return
        try:
            sys_calls.unshare(NEWNET)
            sys_calls.loopback_up()
            sockets.bound_buffers()
            self._is_fresh = True
        except OSError:
            self._wanted = False

    def use(self, order: dict[str, Any]) -> dict[str, Any]:
        if not order["flags"] & NEWNET:
            return order
        self._wanted = True
        if self._is_fresh:
            self._is_fresh = False
            order["flags"] &= ~NEWNET
            order["cell_steps"] = [step for step in order["cell_steps"] if step[0] != "loopback"]
        return order


class _Orphans:
    """What a supervisor that was killed leaves to us, at the levels without a pid namespace."""

    def __init__(self) -> None:
        self._cells: dict[int, bytes] = {}  # their first processes, and when each was born

    def spare(self, cell: int) -> None:
        if len(self._cells) > _MANY_CELLS:
            self._forget_the_dead()
        if fields := stat(cell):
            self._cells[cell] = fields[STARTED]

    def kill(self) -> None:
        until = time.monotonic() + _ORPHANS_S
        quiet = 0
        while quiet < _QUIET_LOOKS and time.monotonic() < until:
            quiet = 0 if tree.kill(self._find, until) else quiet + 1

    def _find(self) -> list[int]:
        self._forget_the_dead()
        found = [pid for pid in tree.children(os.getpid()) if pid not in self._cells]
        return found + tree.descendants(*found)

    def _forget_the_dead(self) -> None:
        self._cells = {pid: born for pid, born in self._cells.items() if stat(pid)[STARTED:][:1] == [born]}


class _Volumes:
    """Files that outlive cells: each volume is a mount namespace of its own, kept by a descriptor.

    The zygote enters it and the cell is born there. So a cell finds the files of its own volume and of no other.
    """

    def __init__(self, overlays: Overlays) -> None:
        self._overlays = overlays
        self._home = -1
        self._kept: dict[int, int] = {}

    def make(self, order: dict[str, Any], trees: list[int]) -> int:
        """A descriptor of its root."""
        if self._home < 0:
            worker.import_ahead()
            _settle_memory()
            sys_calls.unshare(FS)  # libraries imported ahead may have started threads, with whom it would be shared
            self._home = _own_mounts()
        self._overlays.prepare()
        try:
            root = self._build(order, trees)
            try:
                self._kept[order["make_volume"]] = _own_mounts()
            except BaseException:
                os.close(root)
                raise
            return root
        finally:
            self.leave()
            self._overlays.forget()

    def _build(self, order: dict[str, Any], trees: list[int]) -> int:
        sys_calls.unshare(NEWNS)
        self._overlays.attach()
        Jail().apply(order["steps"])
        for lent, target in zip(trees, order["targets"], strict=True):
            sys_calls.move_mount(lent, target)
        return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def drop(self, volume: int) -> None:
        kept = self._kept.pop(volume, None)
        if kept is not None:
            os.close(kept)

    def enter(self, volume: int) -> None:
        if volume not in self._kept:
            raise StepFailed("volume", FileNotFoundError(errno.ENOENT, "it was dropped"))
        sys_calls.setns(self._kept[volume], NEWNS)

    def leave(self) -> None:
        try:
            sys_calls.setns(self._home, NEWNS)
        except OSError:
            os._exit(1)  # the next cell would find the files of another's volume


def _own_mounts() -> int:
    return os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = control.recvmsg(_MAX_ORDER, socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content)
    return data, list(fds)


def _import_common() -> None:
    import signal  # noqa: F401
    import traceback  # noqa: F401

    _settle_memory()


def _settle_memory() -> None:
    """No collection in a cell may walk, and so copy, what it shares with its zygote. Programs turn it on again."""
    gc.disable()
    gc.collect()
    gc.freeze()


def _make_cell(order: dict[str, Any], fds: list[int], orphans: _Orphans, overlays: Overlays | None) -> int:
    """The pidfd of its first process."""
    try:
        pid, pidfd = _clone(order, fds)
    except OSError as error:
        raise StepFailed("clone", error) from error
    if pid:
        if not order["sealed"]:
            orphans.spare(pid)
        if overlays is not None:
            overlays.forget()
        return pidfd
    status = 1
    try:
        status = _be_cell(order, fds, overlays)
    except BaseException as error:  # a defect of ours must not look like a kernel that hangs
        os.write(_CONTROL, frames.failed("internal", 0, repr(error)))
    finally:
        os._exit(status)


def _meet_limit(order: dict[str, Any], doors: list[int]) -> int:
    """The pidfd of somebody who wants more memory than its control group allows."""
    fds = [-1] * 4 + doors
    try:
        pid, pidfd = _clone(order, fds)
    except OSError as error:
        raise StepFailed("clone", error) from error
    if pid:
        return pidfd
    try:
        _enter_groups(order, fds[4:])
        sys_calls.touch_memory(order["meet_limit"])
    finally:
        os._exit(0)


def _clone(order: dict[str, Any], fds: list[int]) -> tuple[int, int]:
    if order["groups"] == 2:
        try:
            born = sys_calls.clone_into_group(order["flags"], fds[4])
            order["groups"] = 0  # it is there
            return born
        except OSError as error:  # root's zygote is nobody; container managers and kernels before 5.7 refuse as well
            if error.errno not in _NO_BIRTH_INTO_GROUP:
                raise
    return sys_calls.clone(order["flags"])


def _be_cell(order: dict[str, Any], fds: list[int], overlays: Overlays | None) -> int:
    """No socket objects in here: a descriptor and plain writes spare every cell the pages that those would touch."""
    jail = Jail()
    try:
        for number, fd in enumerate(fds[:4]):
            os.dup2(fd, number, inheritable=number != _CONTROL)  # first: what fails is said to the cell's own host end
        _enter_groups(order, fds[4:])
        if overlays is not None:
            overlays.attach()
        os.closerange(_CONTROL + 1, 1 << 16)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        jail.apply(order["cell_steps"])
    except StepFailed as failure:
        os.write(_CONTROL, frames.failed(failure.step, failure.errno, failure.detail))
        return 1
    asking = socket.socketpair() if any(step[0] == "asking_seccomp" for step in order["program_steps"]) else None
    try:
        child = os.fork()
    except OSError as error:
        os.write(_CONTROL, frames.failed("fork", error.errno or 0, str(error)))
        return 1
    if child == 0:
        if jail.listener >= 0:
            os.close(jail.listener)  # or it would answer itself
        _be_program(order, asking)
    if asking is not None:
        jail.listener = _receive_listener(child, *asking)
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)
    supervisor = Supervisor(_CONTROL, child, order, keeps_signals=jail.keeps_signals, listener=jail.listener)
    if order["waits"]:
        supervisor.rehearse()
    try:
        supervisor.run()
    except BaseException:
        supervisor.give_up()
        raise
    return 0


def _enter_groups(order: dict[str, Any], doors: list[int]) -> None:
    """Before anything is forked or allocated. "0" is whoever writes it."""
    try:
        for door in doors[1:] if order["groups"] == 2 else doors if order["groups"] == 1 else ():
            os.write(door, b"0")
    except OSError as error:
        raise StepFailed("enter_group", error) from error


def _receive_listener(child: int, ours: socket.socket, theirs: socket.socket) -> int:
    """What the program's filter asks by, which it has put in place itself; -1 if it did not come to that.

    Fetched rather than sent: the program's limits are on, and the kernel then refuses to send descriptors while other
    processes of this user have many on their way.
    """
    theirs.close()
    number = ours.recv(4)
    listener = -1
    if number:
        try:
            listener = sys_calls.fetch_descriptor(child, int.from_bytes(number, "little"))
            ours.send(_FETCHED)
        except OSError:  # it may not look into its child here
            ours.send(_NOT_FETCHED)
            fds = _receive(ours)[1]
            listener = fds[0] if fds else -1
    ours.close()
    return listener


def _hand_over(listener: int, ours: socket.socket, theirs: socket.socket) -> None:
    """And keep nothing by which it could be answered here."""
    ours.close()
    try:
        theirs.send(listener.to_bytes(4, "little"))
        if theirs.recv(1) == _NOT_FETCHED:
            send_with(theirs, b".", listener)
    except OSError as error:
        raise StepFailed("pass", error) from error
    os.close(listener)
    theirs.close()


def _be_program(order: dict[str, Any], asking: tuple[socket.socket, socket.socket] | None) -> NoReturn:
    supervisor = os.getppid()
    try:
        program_may_be_seen()
        if order["program_steps"]:
            jail = Jail()
            jail.apply(order["program_steps"])
            if asking is not None:
                _hand_over(jail.listener, *asking)
    except StepFailed as failure:
        os.write(_CONTROL, frames.failed(failure.step, failure.errno, failure.detail))
        os._exit(1)
    _reseed()
    if order["waits"]:
        if order["volume"] is None:
            runner.rehearse(order["workspace"], order["program"])
        else:
            runner.rehearse_command(order["workspace"])
        sys_calls.flush_c_streams()
    os.write(_CONTROL, frames.READY)
    os.close(_CONTROL)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
    runner.run(supervisor, order["workspace"], order["program"], sys_calls.flush_c_streams)


def _reseed() -> None:
    """Generators of modules imported ahead would give every program the same numbers. `random` sees to itself."""
    for name in ("numpy.random", "torch"):
        module = sys.modules.get(name)
        if module is not None:
            module.seed()
