"""The container's end of the stream of frames to its host. Never waits."""

from __future__ import annotations

import os

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 18
_ROOM = 1 << 20
_HEARD = frozenset(
    {wire.START, wire.INPUT, wire.END_INPUT, wire.KILL, wire.INTERRUPT, wire.TELL_USAGE, wire.FILE, wire.PART}
)


class Garbage(Exception):
    """Not from a host that speaks as we do."""


class HostGone(Exception):
    pass


class Link:
    def __init__(self, read_fd: int, write_fd: int):
        self.read_fd, self.write_fd = read_fd, write_fd
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        self._heard = bytearray()
        self._unsent = bytearray()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def has_room(self) -> bool:
        """Whether programs may be read from: what they write must not pile up here."""
        return len(self._unsent) < _ROOM

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        self._unsent += wire.MUX.pack(kind, number, len(payload))
        self._unsent += payload

    def flush(self) -> None:
        try:
            while self._unsent:
                with memoryview(self._unsent) as view:
                    sent = os.write(self.write_fd, view[:_CHUNK])
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            raise HostGone from None

    def receive(self) -> Iterator[tuple[int, int, bytes]]:
        """The frames that have come. One that is not whole yet waits for the rest."""
        try:
            data = os.read(self.read_fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise HostGone
        self._heard += data
        while len(self._heard) >= wire.MUX.size:
            kind, number, size = wire.MUX.unpack_from(self._heard)
            most = wire.MAX_DATA if kind in wire.DATA else wire.MAX_FRAME
            if kind not in _HEARD or not number or size > most:
                raise Garbage
            end = wire.MUX.size + size
            if len(self._heard) < end:
                return
            payload = bytes(self._heard[wire.MUX.size : end])
            del self._heard[:end]
            yield kind, number, payload
