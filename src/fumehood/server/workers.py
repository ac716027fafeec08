"""Several processes behind one port: started, watched, and stopped together."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ..config import Settings
from .options import ServerOptions


def supervise(options: ServerOptions, settings: Settings, listening: socket.socket, ready: Callable[[], None]) -> int:
    raise NotImplementedError
