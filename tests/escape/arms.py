"""The two arms of an escape test: the attack in the sandbox, and the same attack where nothing holds it.

A refusal is worth what its control arm proves. The control arm runs in mount, pid, ipc, net and uts namespaces made for
it and thrown away (and a user namespace, unless real root is what the attack needs), because bare attacks would hurt
the machine. What an attack looks for on the host is stood in for there: this file, run as a program, is PID 1 of the
arm, sets the stage, runs the attack as its child and reports on stdout.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob  # noqa: F401  what the attacks import must be loaded before /tmp is covered
import inspect
import itertools  # noqa: F401
import json
import os
import platform  # noqa: F401
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig  # noqa: F401
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
IPC_CREAT, IPC_RMID, SHM_SIZE = 0o1000, 0, 4096
KEY_SPEC_SESSION_KEYRING = -3
HANG_S = 280.0  # as in support, which this file cannot import where it is a program
_ATTACK_S = 240.0  # less: an arm whose attack hangs still says what it printed


# ---- what both arms share


def syscall(x86_64: int, aarch64: int, *args: Any) -> int | str:
    """A raw system call: its result, or the name of its errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    number = x86_64 if os.uname().machine == "x86_64" else aarch64
    longs = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in (number, *args)]
    result = int(libc.syscall(*longs))
    return result if result >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")


def wait_for_pid_1() -> None:
    """Until it has dealt with all that it was sent: the real-time signals are taken, and then an orphan is reaped."""

    def pending() -> int:
        with open("/proc/1/status") as status:
            words = dict(line.split(":", 1) for line in status if ":" in line)
        return int(words["ShdPnd"], 16) >> 33

    while pending():
        time.sleep(0.01)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    orphan = int(os.read(read, 16))
    while os.path.exists(f"/proc/{orphan}"):
        time.sleep(0.01)
    os.close(read)
    os.close(write)


def attempt(attack: str, nonce: str) -> None:
    """Runs the attack and says what came of it; shipped into both arms as text."""
    import ctypes
    import json
    import os

    def say(text: str) -> None:
        os.write(1, f"\n{nonce} {text}\n".encode())

    say("ran")
    scope: dict[str, Any] = {"__name__": "__main__"}
    error, number = None, 0
    ctypes.set_errno(0)  # what was refused before is nothing of the attack's
    try:
        exec(attack, scope)
        number = ctypes.get_errno()
    except BaseException as problem:
        error, number = f"{type(problem).__name__}: {problem}", getattr(problem, "errno", 0) or 0
    won = scope.get("won")
    say(json.dumps({"won": bool(won), "shown": repr(won)[:400], "error": error, "errno": number}))


_ATTEMPT = inspect.getsource(attempt)  # now: the stage that is set later may hide this file


def program(attack: str, nonce: str) -> str:
    return f"from typing import Any\n{_ATTEMPT}\nattempt({attack!r}, {nonce!r})\n"


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Placeholders by replacement: the attacks are full of other braces."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text


@dataclass(frozen=True)
class Outcome:
    ran: bool
    finished: bool
    won: bool = False
    shown: str = ""
    error: str | None = None
    errno: int = 0
    output: str = ""

    @property
    def was_refused(self) -> bool:
        """By the system, or it just did not work: a broken attack (NameError, ImportError) must not pass for held."""
        return self.error is None or self.errno != 0

    @property
    def errno_name(self) -> str:
        return errno.errorcode.get(self.errno, str(self.errno))


def read_outcome(output: str, nonce: str) -> Outcome:
    said = [line.split(" ", 1)[1] for line in output.splitlines() if line.startswith(nonce + " ")]
    ran = "ran" in said
    reports = [json.loads(text) for text in said if text.startswith("{")]
    if not reports:
        return Outcome(ran, False, output=output)
    return Outcome(ran, True, output=output, **reports[-1])


SEEN: list[tuple[str, Outcome]] = []  # by a test, for the page of all attacks


def in_the_sandbox(sandbox: Any, attack: str, timeout: float = HANG_S, **settings: Any) -> tuple[Outcome, Any]:
    nonce = secrets.token_hex(8)
    result = sandbox.execute(program(attack, nonce), timeout=timeout, **settings)
    outcome = read_outcome(result.stdout, nonce)
    SEEN.append(("sandbox", outcome))
    return outcome, result


# ---- the control arm, seen from outside


def in_a_throwaway_namespace(attack: str, values: Mapping[str, Any], *, as_real_root: bool = False) -> Outcome:
    """The attack without the sandbox. `as_real_root` only where a mapped root is not enough, and we are root."""
    flags = ["-m", "-p", "-f", "-i", "-n", "-u", "--mount-proc", "--kill-child"]
    if not (as_real_root and os.geteuid() == 0):
        flags += ["-U", "-r"]
    nonce = secrets.token_hex(8)
    done = subprocess.run(
        ["unshare", *flags, sys.executable, "-I", __file__],
        input=job(attack, nonce, values),
        env=careless_environment(values),
        encoding="utf-8",
        errors="replace",
        capture_output=True,
        timeout=HANG_S,
        cwd="/",
    )
    outcome = read_outcome(done.stdout, nonce)
    if not outcome.ran:
        raise RuntimeError(f"the control arm did not run: {done.stdout}\n{done.stderr}")
    SEEN.append(("control", outcome))
    return outcome


def job(attack: str, nonce: str, values: Mapping[str, Any]) -> str:
    """What this file, run as a program, reads from its standard input."""
    return json.dumps({"attack": attack, "nonce": nonce, "values": dict(values)})


def careless_environment(values: Mapping[str, Any]) -> dict[str, str]:
    canary = str(values.get("CANARY", "none"))
    return {"PATH": "/usr/bin:/bin", "ARM_API_KEY": canary, "SSH_AUTH_SOCK": "/tmp/agent"}


# ---- canaries, on the host and on the stage of an arm


def serve_tcp(secret: bytes) -> tuple[socket.socket, int]:
    listener = socket.create_server(("127.0.0.1", 0))
    _answer(lambda: _greet(listener, secret))
    return listener, listener.getsockname()[1]


def serve_udp(secret: bytes) -> tuple[socket.socket, int]:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))

    def reply() -> None:
        _, peer = server.recvfrom(64)
        server.sendto(secret, peer)

    _answer(reply)
    return server, server.getsockname()[1]


def serve_abstract(name: str, secret: bytes) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + name)
    listener.listen()
    _answer(lambda: _greet(listener, secret))
    return listener


def _greet(listener: socket.socket, secret: bytes) -> None:
    peer, _ = listener.accept()
    with peer:
        peer.sendall(secret)


def _answer(once: Callable[[], None]) -> None:
    def loop() -> None:
        while True:
            try:
                once()
            except OSError:
                return

    threading.Thread(target=loop, daemon=True).start()


def share_memory(key: int, secret: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = int(libc.shmget(key, SHM_SIZE, IPC_CREAT | 0o666))
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    address = libc.shmat(segment, None, 0)
    ctypes.memmove(address, secret, len(secret))
    libc.shmdt(ctypes.c_void_p(address))
    return segment


def unshare_memory(segment: int) -> None:
    ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)


def remember_key(description: str) -> int | str:
    """A key in the caller's session keyring; keyrings are not namespaced."""
    add_key = (248, 217)
    return syscall(*add_key, b"user", description.encode(), b"secret", 6, KEY_SPEC_SESSION_KEYRING)


def forget_key(serial: int | str) -> None:
    keyctl, unlink = (250, 219), 9
    if isinstance(serial, int):
        syscall(*keyctl, unlink, serial, KEY_SPEC_SESSION_KEYRING)


def show_canary(canary: str) -> subprocess.Popen[bytes]:
    """A process that carries the canary on its command line and in its environment."""
    sleep = shutil.which("sleep", path="/usr/bin:/bin")
    return subprocess.Popen([canary, "86400"], executable=sleep, env={"CANARY": canary}, stdin=subprocess.DEVNULL)


# ---- inside the control arm: PID 1


def loopback_up() -> None:
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = bytearray(struct.pack("16sH14x", b"lo", 0))
        fcntl.ioctl(sock, get_flags, request)
        (flags,) = struct.unpack_from("H", request, 16)
        struct.pack_into("H", request, 16, flags | up)
        fcntl.ioctl(sock, set_flags, request)


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def set_stage(values: dict[str, Any]) -> list[Any]:
    """What the attacks look for on the host, made inside the arm. The returned things are kept alive."""
    canary = str(values.get("CANARY", "none"))
    loopback_up()
    if "WS" in values:
        mount(values["WS"], "/mnt", None, MS_BIND)
    if not values.get("OPEN_TMP"):
        mount("arm", "/tmp", "tmpfs", 0)
    if values.get("READ_ONLY_USR"):
        mount("/usr", "/usr", None, MS_BIND)
        mount("/usr", "/usr", None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    agent = socket.socket(socket.AF_UNIX)
    if not values.get("OPEN_TMP"):
        agent.bind("/tmp/agent")
    tcp, values["TCPPORT"] = serve_tcp(canary.encode())
    udp, values["UDPPORT"] = serve_udp(canary.encode())
    values["ABSTRACT"] = "arm-" + canary
    abstract = serve_abstract(values["ABSTRACT"], canary.encode())
    values["SHMKEY"] = 0x46554D45
    share_memory(values["SHMKEY"], canary.encode())
    if values.get("OWN_KEYRING"):
        remember_key(canary)
    process = show_canary(canary)
    values["HOSTPID"] = process.pid
    leak = os.open("/etc/passwd", os.O_RDONLY)
    return [agent, tcp, udp, abstract, process, leak]


def run_attack(attack: str, nonce: str, new_session: bool) -> None:
    """As a child, with what a careless caller would hand down: a terminal, a regular file, open descriptors."""
    outer, inner = os.openpty()
    child = os.fork()
    if child == 0:
        if new_session:
            os.setsid()
            fcntl.ioctl(inner, 0x540E, 0)  # TIOCSCTTY
        os.close(outer)
        os.dup2(os.open("/tmp", os.O_TMPFILE | os.O_RDWR), 0)
        for fd in (1, 2):
            os.dup2(inner, fd)
        exec(compile(program(attack, nonce), "<attack>", "exec"), {"__name__": "__main__"})
        os._exit(0)
    os.close(inner)
    output = _read_until_it_ends(child, outer)
    sys.stdout.write(output.decode(errors="replace").replace("\r\n", "\n"))
    sys.stdout.flush()


def _read_until_it_ends(child: int, terminal: int) -> bytes:
    """What it left running may hold the terminal open; then the end of the attack itself counts."""
    output = bytearray()
    has_ended = False
    deadline = time.monotonic() + _ATTACK_S
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0 if has_ended else 0.05)[0]:
            if has_ended:
                break
            has_ended = os.waitpid(child, os.WNOHANG)[0] == child  # what it wrote last may have come meanwhile
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # EIO: nobody holds the other side any more
            break
        if not chunk:
            break
        output += chunk
    return bytes(output)


def main() -> None:
    given = json.load(sys.stdin)
    values = given["values"]
    kept = set_stage(values)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    run_attack(fill(given["attack"], values), given["nonce"], "SAME_SESSION" not in values)
    os._exit(0 if kept else 1)


if __name__ == "__main__":
    main()
