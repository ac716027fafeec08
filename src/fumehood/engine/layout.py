"""What of the host a sandbox shows, read-only: the interpreter, its packages, the system's programs and libraries.

Looks at the host's file system and says what it found; changes nothing.
"""

from __future__ import annotations

import os
import site
import sys
from typing import NamedTuple

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_ETC = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/mime.types",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PREFIX_PARTS = ("bin", "lib", "lib64", "include", "share", "pyvenv.cfg")


class Layout(NamedTuple):
    executable: str
    is_virtual: bool  # a virtualenv finds itself by the path it is started from
    trees: tuple[str, ...]  # directories and files to show at their own paths, none inside another
    links: tuple[tuple[str, str], ...]  # (path, target)
    devices: tuple[str, ...]
    files: frozenset[str] = frozenset()  # those of `trees` that are no directories
    user_packages: tuple[str, ...] = ()


def discover(executable: str) -> Layout:
    """The running interpreter's own surroundings."""
    wanted: list[str] = []
    links: dict[str, str] = {}

    def show(path: str) -> None:
        if os.path.islink(path):
            links[path] = os.readlink(path)
            target = os.path.normpath(os.path.join(os.path.dirname(path), links[path]))
            if os.path.exists(path) and target not in wanted and not links.get(target):
                show(target)
        elif os.path.exists(path):
            wanted.append(path)

    for path in (*_SYSTEM, *_ETC):
        show(path)
    for prefix in dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)):
        for path in dict.fromkeys((prefix, os.path.realpath(prefix))):
            for part in _parts_of(path):
                show(part)
    for path in (executable, os.path.realpath(executable)):
        if not any(_inside(path, tree) for tree in wanted):
            show(path)
    user_packages = _user_packages()
    for path in user_packages:
        show(path)

    trees = _outermost(wanted)
    return Layout(
        executable=executable,
        is_virtual=sys.prefix != sys.base_prefix,
        trees=trees,
        links=tuple((path, target) for path, target in links.items() if not any(_inside(path, tree) for tree in trees)),
        devices=tuple(path for path in _DEVICES if os.path.exists(path)),
        files=frozenset(path for path in trees if not os.path.isdir(path)),
        user_packages=user_packages,
    )


def _parts_of(prefix: str) -> list[str]:
    """All of a plain prefix; of a virtualenv or of one that holds the user's own files only what Python needs."""
    if os.path.exists(f"{prefix}/pyvenv.cfg") or _holds_user_files(prefix):
        return [f"{prefix}/{part}" for part in _PREFIX_PARTS]
    return [prefix]


def _holds_user_files(prefix: str) -> bool:
    here = [os.path.expanduser("~")]
    try:
        here.append(os.getcwd())
    except FileNotFoundError:
        pass
    return any(_inside(os.path.realpath(path), os.path.realpath(prefix)) for path in here)


def _user_packages() -> tuple[str, ...]:
    if not site.ENABLE_USER_SITE:
        return ()
    directory = site.getusersitepackages()
    return (directory,) if directory in sys.path and os.path.isdir(directory) else ()


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _outermost(paths: list[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for path in sorted(dict.fromkeys(paths), key=lambda item: item.count("/")):
        if not any(_inside(path, other) for other in kept):
            kept.append(path)
    return tuple(kept)
