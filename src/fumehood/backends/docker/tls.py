"""Certificates for an engine that is reached over TLS. The engine's own is always checked."""

from __future__ import annotations

import os
import ssl
from typing import NamedTuple

from ...errors import ConfigurationError


class Tls(NamedTuple):
    """Paths. Without `ca` those that this machine trusts will do; without the others we show no certificate."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


def found_in(directory: str | None, origin: str | None) -> Tls:
    """As the docker command names them; `origin` says who wants them to be there, if anybody does."""
    paths = [os.path.join(directory, name) for name in ("ca.pem", "cert.pem", "key.pem")] if directory else []
    ca, certificate, key = [path if os.path.exists(path) else None for path in paths] or (None, None, None)
    if origin is not None and ca is None and certificate is None:
        raise ConfigurationError(f"{origin} says {directory!r}, and neither ca.pem nor cert.pem is there")
    if (certificate is None) != (key is None):
        raise ConfigurationError(f"cert.pem and key.pem belong together, and one of them is missing in {directory!r}")
    return Tls(ca, certificate, key)


def context(tls: Tls) -> ssl.SSLContext:
    reading = tls.ca
    try:
        made = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate is not None:
            reading = f"{tls.certificate} and {tls.key}"
            made.load_cert_chain(tls.certificate, tls.key, password=_refuse)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"certificates for Docker cannot be used ({reading}: {error}): mend them") from None
    return made


def _refuse() -> bytes:
    raise ValueError("the key has a password, which nobody can be asked for")


def explained(error: BaseException, where: str, *, was_dropped: bool) -> str | None:
    """What went wrong with the handshake, if that is what went wrong."""
    said = str(error).lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the Docker daemon at {where} is not trusted ({error.verify_message}):"
            " put the ca.pem that signed it in DOCKER_CERT_PATH"
        )
    # Some say nothing to whom they do not know.
    if was_dropped or "certificate required" in said or "bad certificate" in said or "unknown ca" in said:
        return (
            f"the Docker daemon at {where} wants a certificate that it trusts: put cert.pem and key.pem, signed by its"
            " authority, in DOCKER_CERT_PATH"
        )
    if "wrong version number" in said or "record layer failure" in said:
        return f"the Docker daemon at {where} does not speak TLS: unset DOCKER_TLS_VERIFY, or name its TLS port"
    return f"TLS with the Docker daemon at {where} failed ({error})" if isinstance(error, ssl.SSLError) else None
