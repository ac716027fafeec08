"""Certificates for loopback, of an authority of the tests' own."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import trustme


class Pair(NamedTuple):
    """Files in PEM: a certificate with its chain, and its key."""

    certificate: Path
    key: Path

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))

    def replace_with(self, other: Pair) -> None:
        """No half of it is ever seen."""
        for mine, new in zip(self, other, strict=True):
            beside = mine.with_suffix(".new")
            beside.write_bytes(new.read_bytes())
            beside.replace(mine)


class Authority:
    """One that clients of the tests trust."""

    def __init__(self, directory: Path, *names: str) -> None:
        self._ca, self._directory = trustme.CA(), directory
        self._names = names or ("127.0.0.1", "localhost")
        self.file = directory / "authority.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, name: str, *, until: datetime | None = None, since: datetime | None = None) -> Pair:
        """Of a server with these names; `name` is that of the files, and its common name."""
        issued = self._ca.issue_cert(*self._names, common_name=name, not_before=since, not_after=until)
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        pair.certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        pair.key.write_bytes(issued.private_key_pem.bytes())
        return pair

    def trust(self, **versions: ssl.TLSVersion) -> ssl.SSLContext:
        """A client's."""
        context = ssl.create_default_context(cafile=str(self.file))
        for name, version in versions.items():
            setattr(context, name, version)
        return context


LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
FAR_AHEAD = datetime(2999, 1, 1, tzinfo=UTC)
