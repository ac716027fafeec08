"""Reads and writes files in a tree that hostile code writes to as well. Every failure is an OSError.

Every step goes from one directory's descriptor to the next and follows no link, so no path that a program made leads
out of the tree. Only regular files are opened, and no more is read than was asked for.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Path, size, version (differs when the content may have changed), and of what cannot be read what it is.
    Found = tuple[str, int, tuple[int, ...], str]

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ALL_READ = 0o444
_MAX_FOUND = 50_000  # files in a listing
_MAX_LOOKED = 100_000  # entries of any kind that are looked at for it
_MAX_NAMED = 8 << 20  # characters of all its paths
_MAX_PATH = 4096  # no system call takes a longer one
_MAX_DEPTH = 64
_MAX_OTHERS = 1000  # that are no regular files, or were not looked into
_NO_TEXT = "\x1a"  # Unicode's SUBSTITUTE: no path that may be asked for has it
_CHUNK = 1 << 20

# What else a listing names: the host has words for them, and believes nobody who says anything else.
_KINDS = {
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFDIR: "closed",
    stat.S_IFREG: "file",  # in place of a directory
}


class Outside(OSError):
    """The path leads nowhere in the tree."""


class Gone(OSError):
    """The tree is closed."""


class TooLarge(OSError):
    """There is more than was asked for."""


class TooMany(Exception):
    """There are more entries than were to be looked at."""


class Tree:
    """`root` is a directory's descriptor, ours from now on; `prefixes` say which paths lead where in it."""

    def __init__(self, root: int, prefixes: dict[str, str]):
        self._root = root
        self._prefixes = prefixes

    def open(self, path: str, max_bytes: int) -> int:
        """A regular file's descriptor; refused if it has more than `max_bytes` now."""
        *parents, name = self._parts(path)
        directory = self._directory(parents)
        try:
            fd = os.open(name, _READ, dir_fd=directory)
        finally:
            os.close(directory)
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise _error(errno.EISDIR)
            if not stat.S_ISREG(status.st_mode):
                raise _error(errno.ENXIO)
            if status.st_size > max_bytes:
                raise TooLarge(errno.EFBIG, os.strerror(errno.EFBIG))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def read(self, path: str, max_bytes: int) -> bytes:
        fd = self.open(path, max_bytes)
        try:
            data = _read(fd, max_bytes + 1)
        finally:
            os.close(fd)
        if len(data) > max_bytes:  # it grew
            raise TooLarge(errno.EFBIG, os.strerror(errno.EFBIG))
        return data

    def begin(self, path: str, mode: int | None = None) -> Draft:
        *parents, name = self._parts(path)
        directory = self._directory(parents, make=True)
        try:
            return Draft(directory, name, mode)
        except BaseException:
            os.close(directory)
            raise

    def write(self, path: str, data: bytes) -> None:
        draft = self.begin(path)
        try:
            draft.add(data)
            draft.finish()
        finally:
            draft.close()

    def beneath(self, path: str, leave_out: str | None = None, at_most: int | None = None) -> list[Found]:
        """Regular files beneath, without the directory `leave_out`; after them, with what it is, what cannot be read.

        Mounts are passed over: a virtualenv beneath /tmp is seen there by the program as well.
        With `at_most`, TooMany as soon as there is one entry more.
        """
        parts = self._parts(path)
        try:
            directory = self._directory(parts)
        except FileNotFoundError:
            return []
        except Gone:
            raise
        except OSError:
            return [self._instead(parts, path)]
        try:
            return _Walk(os.fstat(directory).st_dev, leave_out, at_most).beneath(directory, path)
        finally:
            os.close(directory)

    def has_nothing(self, path: str) -> bool:
        """No such directory, or no entry in it."""
        parts = self._parts(path)
        try:
            directory = self._directory(parts)
        except FileNotFoundError:
            return True
        except Gone:
            raise
        except OSError:
            return False  # something else is there
        try:
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        except OSError:
            return False  # it may not be listed
        finally:
            os.close(directory)
        try:
            with os.scandir(fd) as entries:
                return next(entries, None) is None
        finally:
            os.close(fd)

    def used(self) -> tuple[int, int]:
        """Bytes and inodes of the file system that it is on."""
        if self._root < 0:
            return 0, 0
        status = os.fstatvfs(self._root)
        return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_files - status.f_ffree

    def close(self) -> None:
        if self._root >= 0:
            root, self._root = self._root, -1
            os.close(root)

    # --- inside

    def _parts(self, path: str) -> list[bytes]:
        """In UTF-8, whatever this machine's locale."""
        for prefix, target in self._prefixes.items():
            if path == prefix or path.startswith(prefix + "/"):
                parts = [part for part in path[len(prefix) :].split("/") if part]
                if not {".", ".."} & set(parts) and "\0" not in path:
                    return [_encoded(part) for part in (target, *parts)]
        raise Outside(errno.EINVAL, os.strerror(errno.EINVAL))

    def _instead(self, parts: list[bytes], path: str) -> Found:
        """What is there and is no directory that can be entered."""
        try:
            above = self._directory(parts[:-1])
            try:
                status = os.stat(parts[-1], dir_fd=above, follow_symlinks=False)
            finally:
                os.close(above)
        except OSError:
            return path, 0, (), "closed"
        return path, 0, _version(status), _what(status)

    def _directory(self, parts: list[bytes], *, make: bool = False) -> int:
        if self._root < 0:
            raise Gone(errno.EBADF, os.strerror(errno.EBADF))
        current = os.dup(self._root)
        try:
            for part in parts:
                try:
                    step = os.open(part, _DIRECTORY, dir_fd=current)
                except FileNotFoundError:
                    if not make:
                        raise
                    _make(part, current)
                    step = os.open(part, _DIRECTORY, dir_fd=current)
                os.close(current)
                current = step
        except BaseException:
            os.close(current)
            raise
        return current


class Draft:
    """A file in the making: beside the one it will replace, then renamed over it.

    Whoever looks finds all of it or what was there before. Takes over `directory`, a descriptor.
    """

    def __init__(self, directory: int, name: bytes, mode: int | None = None):
        before = _mode(name, directory)
        if stat.S_ISDIR(before):
            raise _error(errno.EISDIR)
        self._name = name
        self._mode = mode
        if mode is None and stat.S_ISREG(before):
            self._mode = stat.S_IMODE(before) & 0o777 | stat.S_IRUSR  # what was sent can be fetched
        self._temporary: str | None = f".{os.urandom(8).hex()}.part"
        self._fd = os.open(self._temporary, _NEW, 0o600, dir_fd=directory)
        self._directory = directory

    def add(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def finish(self) -> None:
        assert self._temporary is not None
        if self._mode is not None:
            os.fchmod(self._fd, self._mode)
        os.rename(self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._temporary = None

    def close(self) -> None:
        """Nothing is left of one that was not finished."""
        if self._directory < 0:
            return
        try:
            os.close(self._fd)
            if self._temporary is not None:
                os.unlink(self._temporary, dir_fd=self._directory)
        except FileNotFoundError:
            pass  # the program was faster
        finally:
            os.close(self._directory)
            self._directory = -1


class _Walk:
    def __init__(self, device: int, leave_out: str | None, at_most: int | None):
        self._device = device
        self._leave_out = leave_out
        self._at_most = at_most
        self._looked = 0
        self._found: list[Found] = []
        self._others: list[Found] = []
        self._named = 0
        self._is_cut = self._has_many = False

    def beneath(self, directory: int, path: str) -> list[Found]:
        self._enter(directory, path, 0)
        found = self._found + self._others
        if self._has_many:
            found.append((path, 0, (), "many"))
        if self._is_cut:
            found.append((path, 0, (), "more"))
        return found

    def _enter(self, directory: int, path: str, depth: int) -> None:
        try:
            self._look(directory, path, depth)
        except FileNotFoundError:
            pass  # taken away while we looked
        except OSError:
            self._tell(path, "closed", os.fstat(directory))  # by the program's own doing

    def _look(self, directory: int, path: str, depth: int) -> None:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if not self._goes_on():
                        self._is_cut = True
                        return
                    place = f"{path}/{_text(entry.name)}"
                    if place != self._leave_out:
                        self._take(entry, fd, place, depth)
        finally:
            os.close(fd)

    def _take(self, entry: os.DirEntry[str], parent: int, place: str, depth: int) -> None:
        is_directory = entry.is_dir(follow_symlinks=False)
        if is_directory and depth < _MAX_DEPTH and len(place) <= _MAX_PATH:
            self._descend(entry.name, parent, place, depth + 1)
            return
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        if len(place) > _MAX_PATH:
            place = f"{place[:_MAX_PATH]}{_NO_TEXT}{status.st_ino}"  # one for each
        if stat.S_ISREG(status.st_mode):
            what = "unreadable" if _is_refused(entry.name, parent, status.st_mode) else ""
            self._found.append((place, status.st_size, _version(status), what))
            self._named += len(place)
        else:
            self._tell(place, "deep" if is_directory else _what(status), status)

    def _goes_on(self) -> bool:
        self._looked += 1
        if self._at_most is not None and self._looked > self._at_most:
            raise TooMany
        return self._looked <= _MAX_LOOKED and len(self._found) < _MAX_FOUND and self._named < _MAX_NAMED

    def _descend(self, name: str, parent: int, path: str, depth: int) -> None:
        try:
            directory = os.open(name, _DIRECTORY, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            return  # the program was faster
        except OSError:
            self._tell(path, "closed")
            return
        try:
            if os.fstat(directory).st_dev == self._device:
                self._enter(directory, path, depth)
        finally:
            os.close(directory)

    def _tell(self, place: str, what: str, status: os.stat_result | None = None) -> None:
        if len(self._others) >= _MAX_OTHERS:
            self._has_many = True
            return
        self._others.append((place, 0, () if status is None else _version(status), what))
        self._named += len(place)


def _encoded(part: str) -> bytes:
    try:
        return part.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        raise Outside(errno.EINVAL, os.strerror(errno.EINVAL)) from None


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _make(name: bytes, directory: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        pass  # the program was faster


def _is_refused(name: str, directory: int, mode: int) -> bool:
    """Whether a reader would be: who that is decides, not the mode alone."""
    if mode & _ALL_READ == _ALL_READ:
        return False
    try:
        os.close(os.open(name, _READ, dir_fd=directory))
    except PermissionError:
        return True
    except OSError:
        pass  # gone, or something else by now
    return False


def _mode(name: bytes, directory: int) -> int:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def _text(name: str) -> str:
    """The name, or one of its own that no file can be asked for by where it has bytes that are not UTF-8."""
    if name.isascii():
        return name
    decoded = os.fsencode(name).decode("utf-8", "surrogateescape")
    if decoded.isprintable():
        return decoded
    return "".join(f"{_NO_TEXT}{ord(ch) & 0xFF:02x}" if "\ud800" <= ch <= "\udfff" else ch for ch in decoded)


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _what(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "other")


def _read(fd: int, size: int) -> bytes:
    chunks = []
    while size > 0 and (chunk := os.read(fd, min(size, _CHUNK))):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
