"""What files say, read again while the server runs: options, the certificate. What cannot be used changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import FumehoodError
from . import certificates
from .certificates import Pair
from .options import ServerOptions, changed, fixed

_PIECE = 64 * 1024


class InForce(msgspec.Struct):
    """What a server goes by; its workers are told it whole."""

    options: ServerOptions
    pair: Pair | None = None
    token_text: str | None = None  # of the token file, as it was last in force

    @classmethod
    def of(cls, options: ServerOptions) -> InForce:
        """These options, with the files that they name."""
        return cls(options, certificates.read(options.tls_cert, options.tls_key) if options.tls_cert else None)


class Reread:
    """`read` gives the options as files and the command line have them now."""

    def __init__(self, read: Callable[[], ServerOptions], said: ServerOptions, now: InForce) -> None:
        self._read, self._said, self.now = read, said, now

    def again(self) -> dict[str, Any]:
        """Take over what can be used; what was done, for the log."""
        told: dict[str, Any] = {"options": "read"}
        failures: list[str] = []
        options, pair = self.now.options, self.now.pair
        try:
            said = self._read()
        except FumehoodError as error:
            told["options"] = "kept"
            failures.append(str(error))
        else:
            need_restart = fixed(self._said, said)
            if bool(said.tls_cert) != bool(options.tls_cert):
                need_restart.append("tls-cert")
                said = said._replace(tls_cert=options.tls_cert, tls_key=options.tls_key)
            options = changed(options, said)
            if need_restart:
                told["need_restart"] = need_restart
        if pair is not None:
            told["certificate"] = "read"
            try:
                pair = certificates.read(options.tls_cert, options.tls_key)
            except FumehoodError as error:
                told["certificate"] = "kept"
                failures.append(str(error))
        self.now = InForce(options, pair)
        if failures or "need_restart" in told:
            told["level"] = "warning"
        if failures:
            told["message"] = "; ".join(failures)
        return told


class Told:
    """What a supervisor tells its worker: lines, until its end."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_over = False
        self._part = b""

    def lines(self) -> list[bytes] | None:
        """Those that are whole now; waits for a piece of one. None at the end."""
        piece = os.read(self.fd, _PIECE)
        if not piece:
            self.is_over = True
            return None
        *lines, self._part = (self._part + piece).split(b"\n")
        return lines
