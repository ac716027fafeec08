"""Where clients connect: a port, or a socket in the file system."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..errors import BadArgument
from .options import ServerOptions

BACKLOG = 1024
_CONNECT_S = 1.0
_MAX_PATH = 107  # the kernel's, for a socket
_ADDED = 9  # what a new socket's name has more, until it is put in its place


@contextmanager
def listen(options: ServerOptions) -> Iterator[socket.socket]:
    """A listening socket; a BadArgument says why there is none."""
    try:
        listener = _at_path(options) if options.unix_socket else _at_port(options.host, options.port)
    except OSError as error:
        where = options.unix_socket or f"{options.host}:{options.port}"
        raise BadArgument(f"cannot listen at {where}: {error.strerror or error}; {_hint(options, error)}") from None
    with listener:
        if not options.unix_socket:
            yield listener
            return
        made = os.lstat(options.unix_socket)
        try:
            yield listener
        finally:
            with suppress(OSError):
                if os.path.samestat(os.lstat(options.unix_socket), made):  # else it is the next server's
                    os.unlink(options.unix_socket)


def _hint(options: ServerOptions, error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "give --host an address of this machine, or its name"
    if not options.unix_socket:
        return "try another --port"
    if error.errno == errno.ENOENT:
        return "make its directory first"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "the server's user must be able to write into its directory"
    return "try another --unix-socket"


def _at_port(host: str, port: int) -> socket.socket:
    """`localhost` is 127.0.0.1 alone."""
    name = "127.0.0.1" if host == "localhost" else host
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    address = socket.getaddrinfo(name, port, family, socket.SOCK_STREAM)[0][4]  # create_server hides that there is none
    listener = socket.create_server(address, family=family, backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else headers wait 40 ms for their body's sake
    return listener


def _at_path(options: ServerOptions) -> socket.socket:
    """Made under another name and then put in its place, so that nobody meets it with other rights."""
    path = options.unix_socket
    if len(os.fsencode(path)) + _ADDED > _MAX_PATH:
        raise BadArgument(f"--unix-socket {path} is longer than the {_MAX_PATH - _ADDED} bytes that a socket may have")
    if _listens(path):
        raise OSError(errno.EADDRINUSE, "another server listens there")
    new = f"{path}.{secrets.token_hex(_ADDED // 2)}"
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(new)
        try:
            os.chmod(new, options.socket_mode)
            listener.listen(BACKLOG)
            os.rename(new, path)
        except BaseException:
            os.unlink(new)
            raise
    except BaseException:
        listener.close()
        raise
    return listener


def _listens(path: str) -> bool:
    """Whether somebody does; what a killed server left is replaced, and nothing that is no socket."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "there is something else, which is no socket")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_CONNECT_S)
        try:
            client.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # its queue is full, or it is not ours to ask
            return True
    return True
