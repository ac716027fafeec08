"""pip or uv, run outside the sandbox: wheels only, so that no package's code runs here. Their errors become ours.

What SANDBOX_SOURCE_PACKAGES names is the exception: it is made into a wheel first, alone, by code of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from . import wheels_only
from .errors import PackageError
from .installation import MAX_DEPTH, MEMORY_BYTES, Installation, Room, Taken, TooLarge
from .one_line import one_line
from .redact import redact_text
from .requirements import Requirement, normalised, parse

_LINES_SHOWN = 3
_MIB = 1024 * 1024
# A wheelhouse is all there is: nothing that is configured for other installations counts.
_ONLY_THE_WHEELHOUSE = ("env", "-u", "PIP_FIND_LINKS", "-u", "UV_FIND_LINKS", "PIP_CONFIG_FILE=/dev/null")
# uv does not read pip's configuration; where it says which index to use, pip it is.
_NAMES_A_SOURCE = re.compile(r"^[\w:]+\.(index-url|extra-index-url|no-index|find-links|index|pypi)=", re.MULTILINE)

_UNREACHABLE = re.compile(
    r"Retrying \(Retry\(|connection error|Failed to fetch|error sending request|Temporary failure in name resolution"
    r"|timed out|SSLError|ProxyError|\b(?:403|407|5\d\d) (?:Client|Server) Error",
    re.IGNORECASE,
)
_FULL = re.compile(r"No space left on device|Errno 28|os error 28|Disk quota exceeded", re.IGNORECASE)
_FILE_TOO_LARGE = re.compile(r"Errno 27\b|os error 27\b")
_WHEEL_TOO_LARGE = re.compile(rf"^{wheels_only.TOO_LARGE} (\d{{1,20}}) (\d{{1,20}}) (.{{1,300}})$", re.MULTILINE)
_OUT_OF_MEMORY = re.compile(r"^MemoryError|memory allocation of \d+ bytes failed", re.MULTILINE)
_CONFLICT = re.compile(r"conflicting dependencies|ResolutionImpossible|requirements are unsatisfiable")
_PIP_MISSES = re.compile(r"No matching distribution found for ([^\s(]+)")
_PIP_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_UV_UNKNOWN = re.compile(r"(?:Because|because) (\S+) was not found in")
# Whole words: what a package wrote may be one of megabytes, and no part of it is worth a second look.
_UV_NO_WHEEL = re.compile(r"(?<!\S)(\S++) has no (?:usable wheels|wheels with)")
_UV_NO_VERSION = re.compile(r"there is no version of (\S+)|only (\S++) is available")
_VERSION_BEGINS = re.compile(r"(?<=.)[<>=!~]")
# pip indents it, by less where it cannot draw lines; what it says itself about it is no reason.
_BUILD_SAID = re.compile(
    r"^ {2,}(?:error: (?!subprocess-exited-with-error).+|[\w.]*(?:Error|Exception): .+)$", re.MULTILINE
)
_FILE = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._]{0,99}?)-(\d[^\s/#?&\"'<>()]{0,199}?)(\.whl|\.tar\.gz|\.zip|\.tar\.bz2|\.tgz)(?![\w.])"
)


class Files(NamedTuple):
    """What a source has of one package."""

    wheels: bool = False
    sources: bool = False


def install(
    wanted: Sequence[Requirement], work: Installation, wheelhouse: str | None, built: Sequence[Requirement]
) -> None:
    """Put the requirements, of which some are `built`, and what they need into `work.site`."""
    if wheelhouse is not None and not os.path.isdir(wheelhouse):
        raise PackageError(f"the wheelhouse {wheelhouse} is not a directory: make it, or change SANDBOX_WHEELHOUSE")
    try:
        _install(wanted, work, wheelhouse, built)
        work.check()
    except TooLarge as error:
        raise _too_large(wanted, error.taken, work.room) from None


def _install(
    wanted: Sequence[Requirement], work: Installation, wheelhouse: str | None, built: Sequence[Requirement]
) -> None:
    installer = _installer(wheelhouse, work)
    source = [] if wheelhouse is None else ["--no-index", "--find-links", wheelhouse]
    for requirement in built:
        _build(requirement, work, wheelhouse, source)
    own = ["--find-links", work.wheels] if built else []
    command = [*installer, "--target", work.site, "--only-binary", ":all:", *source, *own, *map(str, wanted)]
    code, output = work.run(command)
    if code != 0:
        _fail(wanted, code, output, wheelhouse, work)
    for entry in os.listdir(work.site):
        if os.path.exists(os.path.join(work.site, entry, "direct_url.json")):
            _from_an_address(wanted, one_line(entry.partition("-")[0]))


def _installer(wheelhouse: str | None, work: Installation) -> list[str]:
    uv, pip = shutil.which("uv"), _pip(work.room)
    if uv and pip and wheelhouse is None and _NAMES_A_SOURCE.search(work.run([*pip, "config", "list"])[1]):
        uv = None
    only = [] if wheelhouse is None else _ONLY_THE_WHEELHOUSE
    if uv:
        config = [] if wheelhouse is None else ["--no-config"]
        return [
            *only,
            uv,
            "pip",
            "install",
            *config,
            "--python",
            sys.executable,
            "--no-cache",
            "--no-progress",
        ]
    if not pip:
        raise PackageError(
            f"requirements need pip or uv, and there is neither: run `{sys.executable} -m ensurepip`, or install uv"
        )
    return [*only, *pip, "install", *_PIP_OPTIONS]


_PIP_BASE = ("--no-input", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2")
_PIP_OPTIONS = (*_PIP_BASE, "--no-compile", "--no-user", "--no-warn-script-location", "--no-warn-conflicts")


def _build(requirement: Requirement, work: Installation, wheelhouse: str | None, source: Sequence[str]) -> None:
    """Alone: what it depends on is installed as wheels, so that nobody's code runs but of those that were named."""
    if not importlib.util.find_spec("pip"):
        raise PackageError(f"{requirement} is built with pip, and there is none: run `{sys.executable} -m ensurepip`")
    only = [] if wheelhouse is None else _ONLY_THE_WHEELHOUSE
    formats = ("--only-binary", ":all:", "--no-binary", requirement.name)
    pip = (*only, sys.executable, "-P", "-m", "pip", "wheel", *_PIP_BASE, "--no-deps", "--wheel-dir", work.wheels)
    code, output = work.run([*pip, *formats, *source, str(requirement)], builds=True)
    if code != 0:
        raise PackageError(
            f"{requirement} could not be built from source: mend what it lacks on this machine, or take it out of "
            f"SANDBOX_SOURCE_PACKAGES and put a wheel of it into SANDBOX_WHEELHOUSE. "
            f"{_last_lines([output, *_BUILD_SAID.findall(output)][-1])}"
        )


def _pip(room: Room) -> list[str]:
    # -P: the directory of that program has modules of ours, named like some of Python's own.
    program = (sys.executable, "-P", wheels_only.__file__, str(room.size_bytes), str(room.files))
    return [*program] if importlib.util.find_spec("pip") else []


def _fail(
    wanted: Sequence[Requirement], code: int, output: str, wheelhouse: str | None, work: Installation
) -> NoReturn:
    if told := _WHEEL_TOO_LARGE.search(output):
        raise _too_large([told[3]], Taken(int(told[1]), int(told[2])), work.room)
    if code == -signal.SIGXFSZ or _FILE_TOO_LARGE.search(output):
        raise _too_large(wanted, None, work.room)
    names = ", ".join(map(str, wanted))
    flat = " ".join(output.split())  # uv breaks lines where it likes
    if _FULL.search(output):
        raise PackageError(f"the disk is full, so {names} cannot be installed: make room, or set SANDBOX_PACKAGES_DIR")
    if _OUT_OF_MEMORY.search(output):
        raise PackageError(f"{names} cannot be installed within {MEMORY_BYTES >> 30} GiB of memory: this is refused")
    if wheelhouse is None and _UNREACHABLE.search(output):
        raise PackageError(
            f"the package index cannot be reached, so {names} cannot be installed: check the network and pip's "
            f"configuration, or install from a directory of wheels (SANDBOX_WHEELHOUSE). {_last_lines(output)}"
        )
    if wheels_only.REFUSAL in output or "as a URL dependency" in flat:
        _from_an_address(wanted, "a package")
    where = "on the package index" if wheelhouse is None else f"in the wheelhouse {wheelhouse}"
    missing = _PIP_MISSES.search(output)
    if missing:
        versions = _PIP_VERSIONS.search(output)
        found = _look(missing[1], wheelhouse, work)
        _missing(missing[1], where, found, versions[1] if versions and versions[1] != "none" else "")
    if unknown := _UV_UNKNOWN.search(flat):
        _missing(unknown[1], where, Files(), "")
    if unusable := _UV_NO_WHEEL.search(flat):
        _missing(_unversioned(unusable[1]), where, Files(sources="no usable wheels" in unusable[0], wheels=True), "")
    if _CONFLICT.search(flat):
        if version := _UV_NO_VERSION.search(flat):
            only = _unversioned(version[2] or "")
            name = version[1] or next((str(r) for r in wanted if r.name == normalised(only)), only)
            _missing(name, where, Files(wheels=True), "others")
        raise PackageError(f"{names} cannot be installed together: {_conflict(output)}. Loosen or drop one of them")
    raise PackageError(f"{names} could not be installed. {_last_lines(output)}")


def _too_large(names: Sequence[object], taken: Taken | None, room: Room) -> PackageError:
    what, size = ", ".join(map(str, names)), f"more than {room.size_bytes // _MIB:,} MiB"
    advice = "Ask for fewer or smaller packages, or have the setting raised by whoever runs this"
    if taken is not None and taken.is_too_deep:
        return PackageError(f"{what} would nest directories deeper than {MAX_DEPTH}: this is refused")
    if taken is not None and taken.files > room.files and taken.size_bytes <= room.size_bytes:
        allowed = f"SANDBOX_PACKAGES_FILES allows {room.files:,} for all packages of a set"
        return PackageError(f"{what} would be {taken.files:,} files or more, and {allowed}. {advice}")
    if taken is not None:
        largest = f", the largest of them {taken.largest}" if taken.largest else ""
        size = f"{-(-taken.size_bytes // _MIB):,} MiB or more in {taken.files:,} files{largest}"
    allowed = f"SANDBOX_PACKAGES_MB allows {room.size_bytes // _MIB:,} MiB for all packages of a set, unpacked"
    return PackageError(f"{what} would take {size}, and {allowed}. {advice}")


def _unversioned(word: str) -> str:
    return _VERSION_BEGINS.split(word, maxsplit=1)[0]


def _missing(what: str, where: str, found: Files, versions: str) -> NoReturn:
    here = f"Python {sys.version_info[0]}.{sys.version_info[1]} on this platform"
    if found.sources and not versions:
        raise PackageError(
            f"{what} has no wheel for {here} {where}, only source, which is not built: "
            "choose a version or another package that has one, build it and put it into SANDBOX_WHEELHOUSE, or let it "
            "be built on this machine, outside the sandbox: list it in SANDBOX_SOURCE_PACKAGES and in requirements"
        )
    if found.wheels and not versions:
        raise PackageError(f"{what} has wheels {where}, but none for {here}: choose another version or package")
    if versions:
        raise PackageError(f"no version of it {where} has a wheel and fits {what}. There are: {versions[:300]}")
    raise PackageError(f"{what} is not {where}: check how it is spelled")


def _from_an_address(wanted: Sequence[Requirement], name: str) -> NoReturn:
    raise PackageError(
        f"{', '.join(map(str, wanted))} would take {name} from an address of its own choice, to be built or used as it "
        "is: this is refused. Put a wheel of it into SANDBOX_WHEELHOUSE, or do without"
    )


def _look(what: str, wheelhouse: str | None, work: Installation) -> Files:
    """Which files there are of it, by their names: nothing is downloaded, and certainly not built."""
    try:
        ((name, text),) = parse([what])
    except PackageError:  # a dependency's, so it was the index that wrote it
        return Files()
    if wheelhouse is not None:
        listing = "\n".join(os.listdir(wheelhouse))
    else:
        look = ("--dry-run", "--no-deps", "-vv", "--only-binary", ":all:", "--target", f"{work.site}-look")
        _, listing = work.run([*_pip(work.room), "install", *_PIP_OPTIONS, *look, text])
    suffixes = {match[3] for match in _FILE.finditer(listing) if normalised(match[1]) == name}
    return Files(".whl" in suffixes, bool(suffixes - {".whl"}))


def _conflict(output: str) -> str:
    told = re.search(r"The conflict is caused by:\n((?: {2,}\S.*\n)+)", output)  # pip
    if told:
        return "; ".join(line.strip() for line in told[1].splitlines()[:6])
    told = re.search(r"cause: (.+?)(?: hint:|$)", " ".join(output.split()))  # uv
    return told[1][:600].rstrip(".") if told else _last_lines(output)


def _last_lines(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    chosen = [line for line in lines if line.lower().startswith(("error", "cause"))] or lines
    text = " / ".join(chosen[-_LINES_SHOWN:])
    return f"It said: {redact_text(text)[:600]}" if text else "It said nothing."
