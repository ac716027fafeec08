"""Requirements become a directory of packages: made once per set, whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES  # not sysconfig, whose first answers differ between threads
from typing import NamedTuple

from .config import Settings, user_directory
from .errors import PackageError
from .paths import shown
from .requirements import Requirement, check_allowed, normalised, parse

if sys.platform != "win32":
    import fcntl

FORMAT = 1
INSTALL_TIMEOUT_S = 120.0
PROGRESS_EVERY_S = 2.0

_FOR_ROOT = "/var/cache/fumehood/packages"  # root's own home cannot be entered by the user that programs run as
_PAGE, _SITE = "layer.json", "site"
_MIB = 1024 * 1024


class Layer(NamedTuple):
    """A directory of installed packages, and what is in it, such as `six==1.17.0`."""

    path: str
    installed: tuple[str, ...]
    requirements: tuple[str, ...] = ()  # that the backend is to install instead


def wanted(requirements: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Requirements for a backend that installs them where it runs, if they may be named here."""
    check_allowed(parse(requirements), settings.allowed_packages)
    return tuple(requirements)


def ensure(requirements: Sequence[str], settings: Settings, progress: Callable[[str], None] | None = None) -> Layer:
    """The layer with these requirements, installed now if no earlier call has done it."""
    if sys.platform == "win32":
        raise PackageError("requirements need file locks, which this platform lacks: install the packages yourself")
    wanted = parse(requirements)
    check_allowed(wanted, settings.allowed_packages)
    wheelhouse = None if settings.wheelhouse is None else os.path.abspath(settings.wheelhouse)
    trusted = {normalised(name) for name in settings.source_packages}
    built = tuple(requirement for requirement in wanted if requirement.name in trusted)
    root = _root(settings)
    key = _key(wanted, wheelhouse, built)
    place = os.path.join(root, key)
    if (layer := _finished(place)) is not None:
        return layer
    room = (settings.packages_mb * _MIB, settings.packages_files)
    say = progress or (lambda _: None)
    try:
        _prepare(root)
        with _locked(os.path.join(root, f".{key}.lock"), say):
            return _finished(place) or _make(place, wanted, wheelhouse, built, room, say)
    except OSError as error:
        raise _unwritable(root, error) from error


def _root(settings: Settings) -> str:
    if settings.packages_dir is not None:
        return os.path.abspath(settings.packages_dir)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return _FOR_ROOT
    cache = user_directory("XDG_CACHE_HOME", ".cache")
    if cache is None:
        raise PackageError("there is no home to keep packages in: set SANDBOX_PACKAGES_DIR or HOME")
    return os.path.join(cache, "packages")


def _key(wanted: Sequence[Requirement], wheelhouse: str | None, built: Sequence[Requirement]) -> str:
    """Everything that decides what would be installed."""
    what = {
        "format": FORMAT,
        "requirements": [str(requirement) for requirement in wanted],
        "python": [sys.implementation.name, *sys.version_info[:3], EXTENSION_SUFFIXES[0]],
        "platform": [sys.platform, os.uname().machine],
        "source": "index" if wheelhouse is None else "wheelhouse",
        "wheelhouse": wheelhouse,
    }
    if built:
        what["built"] = [requirement.name for requirement in built]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def _finished(place: str) -> Layer | None:
    """The layer, if it is whole: its page is written last, before the whole takes its name."""
    site = os.path.join(place, _SITE)
    try:
        with open(os.path.join(place, _PAGE), encoding="utf-8") as file:
            page = json.load(file)
        installed = page["installed"]
        whole = page["format"] == FORMAT and all(isinstance(name, str) for name in installed) and os.path.isdir(site)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Layer(site, tuple(installed)) if whole else None


def _prepare(root: str) -> None:
    os.makedirs(root, mode=0o755, exist_ok=True)
    if not hasattr(os, "geteuid"):
        return
    found = os.stat(root)
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
        raise PackageError(
            f"others can write to {root}, so packages in it cannot be trusted: "
            f"chmod o-w it, or name another directory with SANDBOX_PACKAGES_DIR"
        )


def _make(
    place: str,
    wanted: Sequence[Requirement],
    wheelhouse: str | None,
    built: Sequence[Requirement],
    room: tuple[int, int],
    say: Callable[[str], None],
) -> Layer:
    from .installation import Installation, Room, remove  # needs subprocess, which a layer that is there does not
    from .installer import install

    root, key = os.path.split(place)
    _remove_leftovers(root, key)
    half = tempfile.mkdtemp(prefix=f".{key}.", dir=root)
    try:
        started = time.monotonic()
        names = ", ".join(str(requirement) for requirement in wanted)
        say(f"installing {names}")
        work = Installation(half, Room(*room), INSTALL_TIMEOUT_S, _ticking(say, f"installing {names}"))
        install(wanted, work, wheelhouse, built)
        installed = tuple(sorted(_distributions(work.site)))
        for entry in set(os.listdir(half)) - {_SITE}:
            remove(os.path.join(half, entry))
        with open(os.path.join(half, _PAGE), "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "requirements": [str(r) for r in wanted], "installed": installed}, file)
        _open_to_all(half)
        os.rename(half, place)
    except BaseException:
        remove(half)
        raise
    say(f"installed {', '.join(installed) or 'nothing'}: {time.monotonic() - started:.0f} s")
    return Layer(os.path.join(place, _SITE), installed)


def _ticking(say: Callable[[str], None], what: str) -> Callable[[], None]:
    started = last = time.monotonic()

    def tick() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_EVERY_S:
            last = now
            say(f"{what}: {now - started:.0f} s")

    return tick


def _remove_leftovers(root: str, key: str) -> None:
    """Of an installation that was killed, or a directory that somebody broke. The lock is ours."""
    from .installation import remove

    for entry in os.listdir(root):
        if entry == key or (entry.startswith(f".{key}.") and entry != f".{key}.lock"):
            path = os.path.join(root, entry)
            remove(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def _distributions(site: str) -> Iterator[str]:
    for entry in os.listdir(site):
        if entry.endswith(".dist-info"):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            yield shown(f"{name.replace('_', '-')}=={version}")


def _open_to_all(directory: str) -> None:
    """Programs run as another user: let them read all of it, and write nothing."""
    for folder, _, files in os.walk(directory):
        os.chmod(folder, 0o755)
        for name in files:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                os.chmod(path, 0o755 if mode & stat.S_IXUSR else 0o644)


@contextmanager
def _locked(path: str, say: Callable[[str], None]) -> Iterator[None]:
    """One installation of a set at a time, across threads and processes."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline, tick = time.monotonic() + INSTALL_TIMEOUT_S + 30, _ticking(say, "waiting for the same installation")
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PackageError(
                        f"another process has installed the same packages for too long ({path})"
                    ) from None
                tick()
                time.sleep(0.05)
        yield
    finally:
        os.close(fd)  # and with it the lock


def _unwritable(root: str, error: OSError) -> PackageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PackageError(f"the disk of {root} is full: make room, or name another with SANDBOX_PACKAGES_DIR")
    why = error.strerror or str(error)
    return PackageError(f"packages cannot be kept in {root}: {why}. Name another directory with SANDBOX_PACKAGES_DIR")
