"""Files of this machine that a session sees read-only in its data directory, under safe names."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

from .errors import BadArgument

HASHED_BYTES = 64 * 1024 * 1024
_MAX_NAME_CHARS = 100
_MAX_SUFFIX_CHARS = 20
_DEFAULT_SUFFIX = ".csv"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class Dataset(NamedTuple):
    name: str  # as the caller calls it
    filename: str  # in the data directory
    path: str  # on this machine


def resolved(datasets: object) -> tuple[Dataset, ...]:
    """The datasets by their file names, no two alike. Raises for what cannot be read."""
    if datasets is None:
        return ()
    if not isinstance(datasets, Mapping):
        raise BadArgument(
            f"datasets must be a mapping of names to paths, such as {{'sales': 'sales.csv'}}, not {_kind(datasets)}"
        )
    paths = {_name(name): _path(name, path) for name, path in datasets.items()}
    wanted = {name: safe_name(name, path) for name, path in paths.items()}
    # A name that is safe as it stands keeps it; the others give way.
    order = sorted(wanted, key=lambda name: not wanted[name].startswith(name))
    taken: set[str] = set()
    given = {}
    for name in order:
        given[name] = _free(wanted[name], taken)
        taken.add(given[name])
    return tuple(Dataset(name, given[name], path) for name, path in paths.items())


def check(datasets: tuple[Dataset, ...]) -> None:
    """Once more, when a sandbox is made: a file may have vanished since."""
    for dataset in datasets:
        _check_file(dataset.name, dataset.path)


class Facts:
    """What records say of the datasets: enough to tell whether a file is still the one it was."""

    def __init__(self, datasets: tuple[Dataset, ...]) -> None:
        self._datasets = datasets
        self._seen: dict[str, tuple[object, Mapping[str, Any]]] = {}  # by path: as of when, what

    def fresh(self) -> bool:
        """Whether no file has to be read again."""
        return all(self._seen.get(one.path, (None,))[0] == _signature(one.path) for one in self._datasets)

    def look(self) -> None:
        """Read those that are new or changed; takes its time."""
        for one in self._datasets:
            signature = _signature(one.path)
            if self._seen.get(one.path, (None,))[0] != signature:
                self._seen[one.path] = signature, identity(one.path)

    def told(self, directory: str) -> list[dict[str, Any]]:
        """As of the last look; `directory` is where the program finds them."""
        return [
            {"name": one.name, "path": f"{directory}/{one.filename}", "source": one.path, **self._seen[one.path][1]}
            for one in self._datasets
            if one.path in self._seen
        ]


def identity(path: str) -> dict[str, Any]:
    """Size and SHA-256 of a file; of a large one size and time of change; nothing of one that cannot be read."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return {}
        if found.st_size > HASHED_BYTES:
            return {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns}
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(1024 * 1024):
                digest.update(block)
        return {"bytes": found.st_size, "sha256": digest.hexdigest()}
    except (OSError, ValueError):
        return {}


def _signature(path: str) -> object:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def safe_name(name: str, path: str) -> str:
    """The name with unsafe characters replaced, and the suffix of the file that it stands for."""
    suffix = _UNSAFE.sub("_", os.path.splitext(path)[1].lower())[:_MAX_SUFFIX_CHARS]
    if len(suffix) < 2:
        suffix = _DEFAULT_SUFFIX
    stem = _UNSAFE.sub("_", name)
    if stem.lower().endswith(suffix):
        stem = stem[: -len(suffix)]
    stem = stem.lstrip(".")[: _MAX_NAME_CHARS - len(suffix)]
    return f"{stem or 'dataset'}{suffix}"


def _free(filename: str, taken: set[str]) -> str:
    stem, suffix = os.path.splitext(filename)
    number = 1
    while filename in taken:
        number += 1
        ending = f"_{number}{suffix}"
        filename = stem[: _MAX_NAME_CHARS - len(ending)] + ending
    return filename


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise BadArgument(f"datasets: a name must be a non-empty str, not {_kind(name)}")
    return name


def _path(name: object, path: object) -> str:
    try:
        given = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        given = None
    if not isinstance(given, str) or not given or "\0" in given:
        raise BadArgument(f"dataset {_shown(name)}: the path must be a str or a Path, not {_kind(path)}")
    absolute = os.path.abspath(given)
    _check_file(name, absolute)
    return absolute


def _check_file(name: object, path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise BadArgument(f"dataset {_shown(name)}: {path} does not exist; check the path") from None
    except (OSError, ValueError) as error:
        raise BadArgument(f"dataset {_shown(name)}: {path} cannot be used ({error})") from None
    if stat.S_ISDIR(mode):
        raise BadArgument(f"dataset {_shown(name)}: {path} is a directory; name each file, or pack it into one")
    if not stat.S_ISREG(mode):
        raise BadArgument(f"dataset {_shown(name)}: {path} is not a regular file; copy what is in it to one")
    if not os.access(path, os.R_OK):
        raise BadArgument(f"dataset {_shown(name)}: {path} cannot be read: permission denied")


def _kind(value: object) -> str:
    return "an empty str" if value == "" else type(value).__name__


def _shown(name: object) -> str:
    return repr(str(name)[:60])
