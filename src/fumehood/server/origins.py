"""Whose pages may call: the Host that a request names, and the origin of the page that sent it."""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers

from .options import ServerOptions
from .problems import Problem


def host_allowed(host: str, options: ServerOptions) -> bool:
    """A name that leads here by DNS rebinding is none of ours; an address cannot be rebound."""
    name, port = _split(host.lower())
    allowed = {each.lower() for each in options.allowed_hosts}
    if allowed & {"*", host.lower(), name}:
        return bool(host)
    if options.loopback:
        return name in ("127.0.0.1", "localhost", "[::1]", options.host) and port == str(options.port)
    return name == "localhost" or _is_address(name)


def _split(host: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and not port.endswith("]") else (host, "80")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


def check_origin(headers: Headers, host: str, navigates: bool) -> None:
    """Absent, or our own; following a link to the page is fine. CORS would not hold WebSockets back."""
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        raise Problem("origin_not_allowed", "pages of other origins may not call this server")
    site = headers.get("sec-fetch-site", "none")
    following_a_link = navigates and headers.get("sec-fetch-mode") == "navigate"
    if site not in ("none", "same-origin") and not following_a_link:
        raise Problem("origin_not_allowed", "pages of other sites may not call this server")
