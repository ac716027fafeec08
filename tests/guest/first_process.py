"""The first process of a container, without a container: of a pid namespace of its own, as nobody in particular.

Its files are a small tmpfs in a mount namespace; it is spoken to over pipes, as a host does over an attached stream.
"""

from __future__ import annotations

import fcntl
import functools
import json
import marshal
import os
import select
import shutil
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path
from typing import Any, NamedTuple

import fumehood
from fumehood.engine.seccomp import compile_filter
from fumehood.guest import wire
from fumehood.guest.wire import FRAME, HEADER
from support import HANG_S, wait_until

PYTHON = "/usr/bin/python3"  # one that an unprivileged user may run
USER = 20_000 + os.getpid() % 40_000  # nobody else's processes count against its limits
_MOUNT = 'mount -t tmpfs -o "size=$SIZE,nr_inodes=500,mode=0755,uid=$OWNER,gid=$OWNER" none "$BASE/files" || exit 77; '
_PLACES = 'cd "$BASE/files" && mkdir workspace tmp home && chown "$OWNER:$OWNER" workspace tmp home || exit 77; '
_START = (
    "import sys; sys.path.insert(0, {base!r}); from fumehood.guest.container import main; "
    "main({base!r} + '/files/workspace', {base!r} + '/files/tmp', {base!r} + '/files/home', {patience_s})"
)


class Ended(NamedTuple):
    stdout: bytes
    stderr: bytes
    status: int
    cpu_ns: int
    max_rss: int
    flags: int

    @property
    def exit_code(self) -> int:
        return 128 + os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else os.WEXITSTATUS(self.status)


class Lost(Exception):
    """The first process is gone."""


class Container:
    def __init__(self, base: Path, size: str = "16m", patience_s: float = 1000) -> None:
        self.base = base
        self.files = f"{base}/files"
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            _command(base, patience_s),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "BASE": str(base), "SIZE": size, "OWNER": _owner()},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._received = bytearray()
        self._unsent = bytearray()
        self.frames: list[tuple[int, int, bytes]] = []
        self._numbers = 0
        self.is_reading = True
        self.hello = json.loads(self.wait_for(wire.HELLO, 0))

    # --- frames

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        self._unsent += wire.MUX.pack(kind, number, len(payload)) + payload
        self._move(0)

    def wait_for(self, kind: int, number: int, within_s: float = HANG_S) -> bytes:
        """The next frame of that kind; those before it stay."""
        deadline = time.monotonic() + within_s
        while True:
            for index, frame in enumerate(self.frames):
                if frame[:2] == (kind, number):
                    return self.frames.pop(index)[2]
            assert time.monotonic() < deadline, f"no {chr(kind)} {number}, but {self.frames[-5:]}"
            self._move(0.1)

    def take(self, kind: int, number: int) -> bytes:
        """All that has come of that kind."""
        data = b"".join(frame[2] for frame in self.frames if frame[:2] == (kind, number))
        self.frames = [frame for frame in self.frames if frame[:2] != (kind, number)]
        return data

    def wait_output(self, number: int, text: bytes, kind: int = wire.STDOUT) -> None:
        deadline = time.monotonic() + HANG_S
        while text not in b"".join(frame[2] for frame in self.frames if frame[:2] == (kind, number)):
            assert time.monotonic() < deadline, f"no {text!r}, but {self.frames[-5:]}"
            self._move(0.1)

    def _move(self, wait_s: float) -> None:
        readers = [self._out] if self.is_reading else []
        ready, writable, _ = select.select(readers, [self._in] if self._unsent else [], [], wait_s)
        if writable:
            try:
                del self._unsent[: os.write(self._in, self._unsent[:65536])]
            except BrokenPipeError:
                raise Lost(self.last_words()) from None
        if ready:
            data = os.read(self._out, 1 << 18)
            if not data:
                raise Lost(self.last_words())
            self._received += data
        while len(self._received) >= wire.MUX.size:
            kind, number, size = wire.MUX.unpack_from(self._received)
            assert size <= (wire.MAX_DATA if kind in wire.DATA else wire.MAX_FRAME)
            end = wire.MUX.size + size
            if len(self._received) < end:
                break
            self.frames.append((kind, number, bytes(self._received[wire.MUX.size : end])))
            del self._received[:end]

    # --- programs

    def start(
        self,
        program: str | list[str],
        stdin: bytes | None = b"",
        env: dict[str, str] | None = None,
        files: dict[str, bytes] | None = None,
        *,
        serves: bool = False,
        limits: dict[str, int] | None = None,
        filtered: bool = True,
    ) -> int:
        """`program`: Python's text, or a command. Input is not ended if it is None."""
        number = self.new_number()
        is_text = isinstance(program, str)
        order = {
            "argv": ["python", "main.py"] if isinstance(program, str) else program,
            "script": program.encode() if isinstance(program, str) and not serves else None,
            "inline": is_text,
            "env": env or {},
            "files": files or {},
            "cpu_s": 0,
            "serves": serves,
        }
        body = marshal.dumps(order, 4)
        request = {
            "order": HEADER.pack(len(body)) + body,
            "serves": serves,
            "filter": compile_filter(self.hello["machine"]) if filtered else None,
            "limits": limits or {},
        }
        self.send(wire.START, number, marshal.dumps(request, 4))
        if stdin is not None and not serves:
            self.feed(number, stdin)
            self.send(wire.END_INPUT, number)
        return number

    def feed(self, number: int, data: bytes) -> None:
        """No more at once than the window has room for."""
        on_their_way = 0
        for start in range(0, len(data), 1 << 18):
            piece = data[start : start + (1 << 18)]
            while on_their_way + len(piece) > wire.WINDOW:
                if any(frame[:2] == (wire.EXITED, number) for frame in self.frames):
                    return
                self._move(0.1)
                on_their_way -= sum(credit for (credit,) in wire.CREDIT.iter_unpack(self.take(wire.TAKEN, number)))
            on_their_way += len(piece)
            self.send(wire.INPUT, number, piece)

    def finish(self, number: int, within_s: float = HANG_S) -> Ended:
        end = wire.EXIT.unpack(self.wait_for(wire.EXITED, number, within_s))
        kinds = [kind for kind, whose, _ in self.frames if whose == number and kind != wire.TAKEN]
        ended = Ended(self.take(wire.STDOUT, number), self.take(wire.STDERR, number), *end)
        assert not kinds or kinds[0] == wire.LOCKED
        self.frames = [frame for frame in self.frames if frame[1] != number]
        return ended

    def run(self, program: str | list[str], stdin: bytes = b"", **options: Any) -> Ended:
        return self.finish(self.start(program, stdin, **options))

    def ask(self, number: int, code: str, run: int = 1) -> dict[str, Any]:
        """One run of an interpreter that serves; the last value is under "value"."""
        self.send_code(number, code, run)
        return self.answer(number)

    def send_code(self, number: int, code: str, run: int = 1) -> None:
        body = json.dumps({"op": "run", "id": run, "code": code}).encode()
        self.feed(number, FRAME.pack(len(body)) + body)

    def answer(self, number: int) -> dict[str, Any]:
        said, value, heard = {}, None, bytearray()
        while said.get("event") != "done":
            heard += self.wait_for(wire.CHANNEL, number)
            while len(heard) >= FRAME.size and len(heard) >= FRAME.size + FRAME.unpack_from(heard)[0]:
                size = FRAME.unpack_from(heard)[0]
                said = json.loads(heard[FRAME.size : FRAME.size + size])
                del heard[: FRAME.size + size]
                if said["event"] == "display":
                    value = said["data"]["text/plain"]
        self.take(wire.TAKEN, number)
        return {**said, "value": value, "stdout": self.take(wire.STDOUT, number).decode()}

    # --- files

    def verb(self, verb: str, path: str, data: bytes | None = None, **arguments: Any) -> tuple[dict[str, Any], bytes]:
        number = self.new_number()
        self.send(wire.FILE, number, marshal.dumps({"verb": verb, "path": f"{self.files}{path}", **arguments}, 4))
        if data is not None:
            for start in range(0, len(data), 1 << 18):
                self.send(wire.PART, number, data[start : start + (1 << 18)])
            self.send(wire.PART, number)
        answer = json.loads(self.wait_for(wire.ANSWER, number))
        return answer, self.take(wire.BODY, number)

    # --- from outside

    @functools.cached_property
    def pid(self) -> int:
        """The first process, as we see it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def count_processes(self) -> int:
        return len(self.processes())

    def processes(self) -> list[str]:
        """All that live in there."""
        namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
        return [name for name in os.listdir("/proc") if name.isdigit() and _namespace(name) == namespace]

    def wait_until_it_stands_still(self) -> None:
        """Nobody has anything to do until we read: there is much to read, and twice in a row nobody has run."""
        seen = [self._standstill()]

        def stands_still() -> bool:
            seen[:] = [*seen[-1:], self._standstill()]
            return seen[0] is not None and seen[0] == seen[-1]

        assert wait_until(stands_still)

    def _standstill(self) -> tuple[int, dict[str, str]] | None:
        """How much there is to read and how often each process went to sleep; None if one is awake."""
        (unread,) = struct.unpack("i", fcntl.ioctl(self._out, termios.FIONREAD, bytes(4)))
        slept = {}
        for name in self.processes():
            if _state(name) != "S":
                return None
            slept[name] = _status(name).partition("voluntary_ctxt_switches:")[2].split("\n")[0]
        return (unread, slept) if unread > fcntl.fcntl(self._out, fcntl.F_GETPIPE_SZ) / 2 else None

    def last_words(self) -> str:
        return os.pread(self.errors.fileno(), 1 << 16, 0).decode()

    def wait(self) -> int:
        return self.process.wait(HANG_S)

    def close(self) -> None:
        self.process.kill()  # and the first process with it
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            try:
                stream.close()  # type: ignore[union-attr]
            except BrokenPipeError:
                pass


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _status(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except OSError:
        return ""


def _namespace(pid: str) -> str:
    """Of one that lives."""
    try:
        is_dead = _state(pid) == "Z" and os.listdir(f"/proc/{pid}/task") == [pid]
        return "" if is_dead else os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _owner() -> str:
    return str(USER) if os.geteuid() == 0 else "0"


def _command(base: Path, patience_s: float = 1000) -> list[str]:
    is_root = os.geteuid() == 0
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    if not is_root:  # a root of our own may mount, but owns what the kernel hides: be somebody else in there
        drop = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    start = [PYTHON, "-I", "-c", _START.format(base=str(base), patience_s=patience_s)]
    inside = ["sh", "-c", _MOUNT + _PLACES + 'exec "$@"', "sh", *drop, *start]
    spaces = ["--fork", "--pid", "--mount-proc", "--kill-child=SIGKILL"]
    return ["unshare", *([] if is_root else ["--user", "--map-root-user"]), *spaces, *inside]


def make_base() -> Path:
    """What an image has beneath /opt/fumehood, and a place for files."""
    base = Path(tempfile.mkdtemp(prefix="fumehood-first-", dir="/tmp"))  # every user can go there
    source = Path(fumehood.__file__).parent
    (base / "fumehood").mkdir()
    shutil.copy(source / "__init__.py", base / "fumehood")
    shutil.copytree(source / "guest", base / "fumehood/guest", ignore=shutil.ignore_patterns("__pycache__"))
    (base / "files").mkdir()
    for folder, _, names in os.walk(base):  # whatever the umask
        os.chmod(folder, 0o755)
        for name in names:
            os.chmod(f"{folder}/{name}", 0o644)
    return base


def why_not(base: Path) -> str | None:
    """Why there can be none on this machine."""
    for tool in ("unshare", "setpriv", PYTHON):
        if shutil.which(tool) is None:
            return f"{tool} is not there"
    trial = _command(base)
    trial[trial.index("-I") :] = ["-c", "import os; raise SystemExit(os.getpid() != 1)"]
    environment = {"PATH": os.environ["PATH"], "BASE": str(base), "SIZE": "1m", "OWNER": _owner()}
    done = subprocess.run(trial, env=environment, capture_output=True, encoding="utf-8", timeout=HANG_S)
    return None if done.returncode == 0 else f"no pid namespace of our own: {done.stderr.strip()}"
