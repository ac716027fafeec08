"""The server's certificate and key: read from files, tried in a handshake, and used from memory."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ..errors import ConfigurationError
from . import reading

_MAX_BYTES = 1024 * 1024
_NAME = "server.invalid"
_FIRST = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class Pair(NamedTuple):
    """A certificate with its chain, and its key, in PEM. The files may change at any time; this does not."""

    certificate: bytes
    key: bytes


def read(certificate: str, key: str) -> Pair:
    """The two files; a ConfigurationError says why they cannot be used."""
    pair = Pair(_content(certificate, "--tls-cert"), _content(key, "--tls-key"))
    names = f"{certificate} (--tls-cert) and {key} (--tls-key)"
    try:
        _shake_hands(context(pair), pair.certificate)
    except ssl.SSLCertVerificationError as error:
        raise ConfigurationError(f"the certificate {certificate} (--tls-cert): {error.verify_message}") from None
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"{names} cannot be used: {_reason(error)}") from None
    return pair


def context(pair: Pair) -> ssl.SSLContext:
    """For connections from now on: TLS 1.2 and up."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    made.set_alpn_protocols(["http/1.1"])
    with _as_file(pair.certificate) as certificate, _as_file(pair.key) as key:
        made.load_cert_chain(certificate, key, password=_no_password)
    return made


def _content(path: str, option: str) -> bytes:
    try:
        data = reading.content(path, _MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise ConfigurationError(f"{path} ({option}) cannot be read: {reason}") from None
    if len(data) > _MAX_BYTES:
        raise ConfigurationError(f"{path} ({option}) is larger than {_MAX_BYTES // 1024} KiB: it is no PEM file")
    return data


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """OpenSSL reads files alone; a key should not get a second one on a disk."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        fd = os.memfd_create("fumehood-pem", os.MFD_CLOEXEC)
        try:
            os.write(fd, data)
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
        return
    with tempfile.NamedTemporaryFile(prefix="fumehood-pem-") as file:
        file.write(data)
        file.flush()
        yield file.name


def _no_password() -> str:
    raise ValueError("the key is protected by a passphrase, which nobody can type here: give one without")


def _shake_hands(server: ssl.SSLContext, certificate: bytes) -> None:
    """With a client that trusts just this certificate: so it is checked as clients do, its dates too."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    first = _FIRST.search(certificate)
    if first is None:
        raise ValueError("there is no certificate")
    client.load_verify_locations(cadata=first[0].decode("ascii", "replace"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=_NAME),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = True
    while waiting:
        waiting = False
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting = True


def _reason(error: Exception) -> str:
    if not isinstance(error, ssl.SSLError):
        return str(error)
    known = {"KEY_VALUES_MISMATCH": "the key is not the certificate's"}
    no_pem = ("NO_START_LINE", "PEM_LIB", "", None)
    if error.reason in no_pem:
        return "not in PEM, or a part is missing"
    return known.get(error.reason, error.reason.lower().replace("_", " "))
