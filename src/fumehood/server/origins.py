"""Whose pages may call: the Host that a request names, and the origin of the page that sent it."""

from __future__ import annotations

import ipaddress
import re

from starlette.datastructures import Headers

from .options import ServerOptions
from .problems import Problem

# RFC 3986: what a name may have, without what would end it in a URL, or an address in brackets; then a port.
_HOST = re.compile(r"(?:[a-z0-9._~!$&'()*+,;=-]|%[0-9a-f]{2})+|\[[0-9a-f:.]+\]")
_PORT = re.compile(r"(?::\d{1,5})?", re.ASCII)
_MAX_PORT = 65535


def host_allowed(host: str, options: ServerOptions) -> bool:
    """A name that leads here by DNS rebinding is none of ours; an address cannot be rebound."""
    host = host.lower()
    if not host or not _is_ours(host, options):
        return False
    if not _is_host(host):
        raise Problem("bad_request", "this Host is neither a name nor an address, with or without a port")
    return True


def _is_ours(host: str, options: ServerOptions) -> bool:
    name, port = _split(host, "443" if options.tls_cert else "80")
    if {each.lower() for each in options.allowed_hosts} & {"*", host, name}:
        return True
    if options.loopback:
        is_named = name in ("127.0.0.1", "localhost", "[::1]", options.host)
        return is_named and (bool(options.unix_socket) or port == str(options.port))
    return name == "localhost" or _is_address(name)


def _split(host: str, usual: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and not port.endswith("]") else (host, usual)


def _is_host(host: str) -> bool:
    found = _HOST.match(host)
    port = host[found.end() :] if found else ""
    if found is None or not _PORT.fullmatch(port) or int(port[1:] or 1) > _MAX_PORT:
        return False
    return not host.startswith("[") or _is_address(found[0])


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


def check_origin(headers: Headers, host: str, options: ServerOptions, navigates: bool) -> None:
    """Absent, or our own; following a link to the page is fine. CORS would not hold WebSockets back."""
    origin = headers.get("origin")
    schemes = ("https",) if options.tls_cert else ("http", "https")  # a proxy before us may speak TLS
    if origin is not None and origin.lower() not in [f"{scheme}://{host.lower()}" for scheme in schemes]:
        raise Problem("origin_not_allowed", "pages of other origins may not call this server")
    site = headers.get("sec-fetch-site", "none")
    following_a_link = navigates and headers.get("sec-fetch-mode") == "navigate"
    if site not in ("none", "same-origin") and not following_a_link:
        raise Problem("origin_not_allowed", "pages of other sites may not call this server")
