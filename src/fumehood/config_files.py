"""Reads the files settings come from. What they hold is checked by `config`; here only that they are sane to read."""

from __future__ import annotations

import errno
import os
import stat

from .descriptors import exhausted
from .errors import ConfigurationError

MAX_FILE_BYTES = 64 * 1024
_MAX_DEPTH = 2  # a mapping whose values may be lists


def read_yaml(path: str, origin: str, *, follow_symlinks: bool) -> dict[object, object] | None:
    """The mapping in a YAML file, or None where there is no such file."""
    raw = _read(path, origin, follow_symlinks=follow_symlinks)
    return None if raw is None else _parse_yaml(raw, origin, "SafeLoader")


def read_texts(path: str, what: str) -> dict[object, object]:
    """The mapping in a YAML file that must be there. Every value is text as it was written, or a list of such."""
    raw = _read(path, path, follow_symlinks=True, is_named=True)
    if raw is None:
        raise ConfigurationError(f"{what} {path} does not exist.")
    return _parse_yaml(raw, path, "BaseLoader")


def read_env(path: str) -> dict[str, str]:
    """The `NAME=value` lines of a file: comments, `export` and quotes are understood, nothing is expanded."""
    raw = _read(path, path, follow_symlinks=True, is_named=True)
    if raw is None:
        raise ConfigurationError(f"The environment file {path} does not exist.")
    values: dict[str, str] = {}
    for number, line in enumerate(_decode(raw, path).splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name.isidentifier():
            raise ConfigurationError(f"{path}, line {number}: expected NAME=value.")
        if value[:1] in ("'", '"'):
            end = value.find(value[0], 1)
            rest = value[end + 1 :].strip()
            if end < 0 or (rest and not rest.startswith("#")):
                raise ConfigurationError(f"{path}, line {number}: the quotes around {name} are not closed.")
            value = value[1:end]
        elif value.startswith("#"):
            value = ""
        else:
            value = value.partition(" #")[0].rstrip()
        values[name] = value
    return values


def _read(path: str, origin: str, *, follow_symlinks: bool, is_named: bool = False) -> bytes | None:
    # O_NONBLOCK: opening a planted fifo must not wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    if not follow_symlinks:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        fd = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise ConfigurationError(f"{origin!r} is not a path.") from None
    except OSError as error:
        if error.errno == errno.EACCES and not is_named and not _can_see(path):
            return None
        if error.errno == errno.ELOOP and not follow_symlinks:
            raise ConfigurationError(f"{origin} is a symbolic link; it must be a regular file.") from None
        raise _unreadable(origin, error) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigurationError(f"{origin} is not a regular file.")
        with os.fdopen(os.dup(fd), "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(origin, error) from None
    finally:
        os.close(fd)
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{origin} is larger than {MAX_FILE_BYTES // 1024} KiB; settings are never that long.")
    return raw


def _unreadable(origin: str, error: OSError) -> ConfigurationError:
    if cause := exhausted(error):  # nothing is wrong with the file
        return ConfigurationError(f"Settings cannot be read: {cause}.")
    return ConfigurationError(f"{origin} cannot be read: {error.strerror}.")


def _can_see(path: str) -> bool:
    # HOME is often another user's (sudo, services): a directory that cannot be entered holds nothing of ours.
    try:
        os.lstat(path)
    except PermissionError:
        return False
    return True


def _decode(raw: bytes, origin: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{origin} is not UTF-8 text.") from None


def _parse_yaml(raw: bytes, origin: str, loader_name: str) -> dict[object, object]:
    import yaml  # here, because most runs have no file and should not pay for the import

    text = _decode(raw, origin)
    loader_class = getattr(yaml, f"C{loader_name}", None) or getattr(yaml, loader_name)
    try:
        _check_events(yaml, text, loader_class, origin)
        loader = loader_class(text)
        try:
            node = loader.get_single_node()
            if node is None or node.tag == "tag:yaml.org,2002:null":
                return {}
            if not isinstance(node, yaml.MappingNode):
                raise ConfigurationError(f"{origin} must hold `setting: value` lines.")
            _check_duplicates(node.value, origin)
            data = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{origin}{where}: not valid YAML ({getattr(error, 'problem', None)}).") from None
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        # The last two of what a tag such as !!bool or !!timestamp raises for a value of another kind.
        raise ConfigurationError(f"{origin}: a value cannot be read ({error}).") from None
    return dict(data)


def _check_events(yaml: object, text: str, loader_class: object, origin: str) -> None:
    # Before anything is built: aliases grow without bound, and deep nesting recurses in C.
    depth = 0
    for event in yaml.parse(text, loader_class):  # type: ignore[attr-defined]
        kind = type(event).__name__
        if kind == "AliasEvent" or getattr(event, "anchor", None):
            raise ConfigurationError(f"{origin} uses YAML anchors or aliases (& and *), which are not accepted.")
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            depth += 1
            if depth > _MAX_DEPTH:
                line = event.start_mark.line + 1
                raise ConfigurationError(f"{origin}, line {line}: nested too deeply; a value is a scalar or a list.")
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            depth -= 1


def _check_duplicates(pairs: list[tuple[object, object]], origin: str) -> None:
    seen: set[object] = set()
    for key, _ in pairs:
        name = getattr(key, "value", None)
        if not isinstance(name, str):
            raise ConfigurationError(f"{origin} must hold `setting: value` lines.")
        if name in seen:
            raise ConfigurationError(f"{origin} sets {name[:60]!r} twice.")
        seen.add(name)
