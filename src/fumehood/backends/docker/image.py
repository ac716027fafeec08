"""The runner image: what goes into it, how it is built, and whether the one that is there fits."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...config import Settings
from ...errors import BackendUnavailable, BadArgument, EngineFailed, FumehoodError
from ...guest import wire
from .address import find
from .client import Client, Refused, translated

# The Dockerfile sets the first two.
VERSION, PROTOCOL, SOURCES = "io.fumehood.version", "io.fumehood.protocol", "io.fumehood.sources"
_PACKAGE = Path(__file__).parents[2]
_DOCKERFILE, _REQUIREMENTS = "Dockerfile", "docker/requirements.txt"
_CHUNK = 1 << 20
_TAIL = 20
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAG = re.compile(rf"(?:[A-Za-z0-9.-]+(?::\d+)?/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")  # the engine's own, of what a step writes to stderr
_ENDED = re.compile(r"^The command .* (returned a non-zero code: \d+)$", re.DOTALL)
_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_NO_PACKAGES = re.compile(
    r"no module named pip|no matching distribution|could not find a version|connection.* (broken|failed|refused)"
    r"|name resolution|network is unreachable|check_hostname|max retries exceeded",
    re.IGNORECASE,
)


class Options(NamedTuple):
    """Of one build."""

    tag: str
    build_args: Mapping[str, str] = {}
    wheelhouse: Path | None = None  # install from here, and reach no network
    requirements: Path | None = None  # other libraries than ours
    no_cache: bool = False


class Step(NamedTuple):
    """Where a build is."""

    number: int
    total: int
    instruction: str


class Found(NamedTuple):
    """An image that is there."""

    tag: str
    identity: str
    size_bytes: int
    created: str
    version: str | None
    protocol: str | None
    is_current: bool  # of these very sources

    @property
    def problem(self) -> str | None:
        """Why programs cannot run in it."""
        if self.protocol is None:
            return "it is no runner image of fumehood, or one from before they said so"
        if self.protocol != str(wire.PROTOCOL):
            return f"it is of fumehood {self.version}, whose protocol is {self.protocol}; this one's is {wire.PROTOCOL}"
        return None


async def look(settings: Settings, tag: str) -> Found | None:
    """The image of that name, if the engine has it."""
    client = Client(find(settings))
    try:
        await client.meet()
        return await _found(client, tag)
    finally:
        await client.close()


async def build(settings: Settings, options: Options, tell: Callable[[Step | str], None]) -> Found:
    """Make it. `tell` hears of each step, and what it prints."""
    _check(options)
    files = context(options)
    arguments = {**({"PIP_NO_INDEX": "1"} if options.wheelhouse else {}), **options.build_args}
    params = {
        "t": options.tag,
        "buildargs": json.dumps(arguments),
        "labels": json.dumps({SOURCES: sources(options.requirements)}),
        "rm": "1",
        "forcerm": "1",
        **({"nocache": "1"} if options.no_cache else {}),
        **({"networkmode": "none"} if options.wheelhouse else {}),
    }
    client = Client(find(settings))
    listener = _Listener(tell)
    try:
        await client.meet()
        before = await _found(client, options.tag)
        try:
            await client.build(_tar(files), params, listener.hear)
        except Refused as refused:
            raise _failure(refused.said, listener, arguments) from None
        except BackendUnavailable as error:
            raise EngineFailed(f"the Docker engine went away while it built the image: {error}") from error
        if listener.error is not None:
            raise _failure(listener.error, listener, arguments)
        found = await _found(client, options.tag)
        if found is None:
            raise EngineFailed(f"the Docker engine says that it built {options.tag}, and does not have it; try again")
        if before is not None and before.protocol is not None and before.identity != found.identity:
            await _remove_untagged(client, before.identity)
        return found
    finally:
        await client.close()


def context(options: Options) -> list[tuple[str, Path]]:
    """What is sent: each file's name there, and where it is here."""
    files = _own_files(options.requirements)
    if options.wheelhouse is not None:
        files += [(f"docker/wheels/{path.name}", path) for path in sorted(options.wheelhouse.glob("*.whl"))]
    return files


def sources(requirements: Path | None = None) -> str:
    """A digest of all that is ours in it."""
    digest = hashlib.sha256()
    for name, path in _own_files(requirements):
        digest.update(f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


# --- inside


def _own_files(requirements: Path | None) -> list[tuple[str, Path]]:
    installed = Path(__file__).parent / "context"
    top = installed if installed.is_dir() else _PACKAGE.parents[1]  # a checkout
    dockerfile = top / _DOCKERFILE
    try:
        named = re.findall(r"\bsrc/fumehood/(\S+\.py)", dockerfile.read_text())
    except OSError as error:
        raise EngineFailed(
            f"this installation has no Dockerfile ({error}): reinstall fumehood, or build in a checkout"
        ) from None
    paths = sorted({path for pattern in named for path in _PACKAGE.glob(pattern)})
    return [
        (_DOCKERFILE, dockerfile),
        (_REQUIREMENTS, requirements or top / _REQUIREMENTS),
        *((f"src/fumehood/{path.relative_to(_PACKAGE)}", path) for path in paths),
    ]


def _check(options: Options) -> None:
    if not _TAG.fullmatch(options.tag) or len(options.tag) > 255:
        raise BadArgument(
            f"{options.tag[:100]!r} cannot be the name of an image: expected something like antigravity-sandbox:latest,"
            " in lower case"
        )
    if options.requirements is not None and not options.requirements.is_file():
        raise BadArgument(f"there is no file {str(options.requirements)!r} with requirements")
    if options.wheelhouse is not None and next(options.wheelhouse.glob("*.whl"), None) is None:
        raise BadArgument(f"there are no wheels in {str(options.wheelhouse)!r}: name a directory that has some")


async def _tar(files: Sequence[tuple[str, Path]]) -> AsyncIterator[bytes]:
    for name, path in files:
        with open(path, "rb") as file:
            info = tarfile.TarInfo(name)
            info.size = left = os.fstat(file.fileno()).st_size
            yield info.tobuf()
            while left:
                part = file.read(min(left, _CHUNK))
                if not part:
                    raise EngineFailed(f"{path} became shorter while it was sent; try again")
                left -= len(part)
                yield part
            yield bytes(-info.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


class _Listener:
    """To what the engine says of a build."""

    def __init__(self, tell: Callable[[Step | str], None]):
        self.step: Step | None = None
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self.error: str | None = None
        self._tell = tell
        self._rest = ""

    def hear(self, message: Mapping[str, Any]) -> None:
        if "error" in message:
            self.error = str(message["error"])
        elif "stream" in message:
            *lines, self._rest = (self._rest + _COLOUR.sub("", str(message["stream"]))).split("\n")
            for line in filter(str.strip, lines):
                self._line(line)
        elif "status" in message:  # of a base that is pulled
            parts = (message.get("id"), message["status"], message.get("progress"))
            self._tell(" ".join(str(part) for part in parts if part))

    def _line(self, line: str) -> None:
        if step := _STEP.match(line):
            self.step = Step(int(step[1]), int(step[2]), " ".join(step[3].split()))
            self.tail.clear()
            self._tell(self.step)
        elif not line.startswith((" ---> ", "Removing intermediate", "Successfully ")):
            self.tail.append(line)
            self._tell(line)


def _failure(said: str, listener: _Listener, arguments: Mapping[str, str]) -> FumehoodError:
    step, output = listener.step, "\n".join(listener.tail)
    if _FULL.search(f"{said}\n{output}"):
        return translated(Refused(500, "no space left on device"), "build the image")
    if step is None:
        return translated(Refused(400, said), "build the image")
    where = f"step {step.number} of {step.total} ({_short(step.instruction)})"
    if step.instruction.startswith("FROM "):
        base = arguments.get("BASE") or _usual_base()
        return EngineFailed(
            f"the base image {base} cannot be had ({said[:500]}): with --base name one that the engine has or can pull;"
            " where it reaches no registry, any that has python3 in it will do, together with --wheelhouse"
        )
    hint = ""
    if _NO_PACKAGES.search(output):
        hint = ". The libraries could not be fetched: let the engine reach an index, or name a directory of wheels,"
        hint += " pip's own among them, with --wheelhouse"
    shown = f"; its last lines:\n{output}" if output else ""
    why = _short(_ENDED.sub(r"\1", said))
    return EngineFailed(f"the image was not built: {where} failed: {why}{hint}{shown}")


def _usual_base() -> str:
    found = re.search(r"^ARG BASE=(\S+)", _own_files(None)[0][1].read_text(), re.MULTILINE)
    return found[1] if found else ""


async def _found(client: Client, tag: str) -> Found | None:
    try:
        said = await client.ask("GET", f"/images/{tag}/json")
    except Refused as refused:
        if refused.status == 404:
            return None
        raise translated(refused, f"show the image {tag}") from None
    labels: Mapping[str, str] = (said.get("Config") or {}).get("Labels") or {}
    return Found(
        tag,
        str(said["Id"]),
        int(said.get("Size") or 0),
        str(said.get("Created") or ""),
        labels.get(VERSION),
        labels.get(PROTOCOL),
        labels.get(SOURCES) == sources(),
    )


async def _remove_untagged(client: Client, identity: str) -> None:
    """The one before, unless it has another name or is used."""
    try:
        if not (await client.ask("GET", f"/images/{identity}/json")).get("RepoTags"):
            await client.ask("DELETE", f"/images/{identity}")
    except (Refused, FumehoodError):
        pass


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:99]}…"
