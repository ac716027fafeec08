"""Where the server is, and what to show it. The token is in no message."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from ...config import Settings
from ...config_values import secret
from ...errors import ConfigurationError

_MAX_TOKEN_FILE = 64 * 1024


class Address(NamedTuple):
    """Of a server."""

    url: str
    settings: Settings

    def __repr__(self) -> str:
        return f"Address({self.url!r})"

    def token(self) -> str:
        """As it is now: a file may have been changed since."""
        settings = self.settings
        if settings.remote_token is not None:
            return settings.remote_token.reveal()
        path = settings.remote_token_file
        assert path is not None
        try:
            with open(path, "rb") as file:
                text = file.read(_MAX_TOKEN_FILE)
        except OSError as error:
            raise ConfigurationError(
                f"the token file {path} (SANDBOX_REMOTE_TOKEN_FILE) cannot be read: {error.strerror}"
            ) from None
        try:
            return secret(text.decode("ascii", "replace")).reveal()
        except ValueError:
            raise ConfigurationError(
                f"the token file {path} (SANDBOX_REMOTE_TOKEN_FILE) must hold the token and nothing else"
            ) from None


def find(settings: Settings) -> Address:
    """From the settings, if they say enough and nothing that gives the token away."""
    url = settings.remote_url
    if url is None:
        raise ConfigurationError(
            "the remote backend needs a server: set SANDBOX_REMOTE_URL, such as http://127.0.0.1:8080, where"
            " `fumehood serve` runs"
        )
    if (settings.remote_token is None) == (settings.remote_token_file is None):
        raise ConfigurationError(
            "the remote backend needs a token: set one of SANDBOX_REMOTE_TOKEN and SANDBOX_REMOTE_TOKEN_FILE;"
            " `fumehood serve` says it when it starts"
        )
    parts = urlsplit(url)
    if parts.scheme == "http" and not settings.remote_cleartext and not _is_loopback(parts.hostname or ""):
        raise ConfigurationError(
            f"{url} would send the token and the code in clear to another machine: use https://, a tunnel to"
            " 127.0.0.1, or set SANDBOX_REMOTE_CLEARTEXT=true where the network is your own"
        )
    return Address(url, settings)


def _is_loopback(host: str) -> bool:
    """By address alone: a name may resolve to anything, but for localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
