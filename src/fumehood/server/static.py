"""The page and its files, from the package; read once, no path of a request reaches the file system."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from mimetypes import guess_type
from secrets import token_urlsafe
from typing import Any

from starlette.responses import Response

from .problems import Problem
from .routes import Route
from .state import Call

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Frames that show a program's HTML take over the page's policy: the one style sheet in them has a nonce.
NONCE = b'<meta name="csp-nonce" content="'
QUIET = {"X-DNS-Prefetch-Control": "off"}  # no name is looked up because it is in sight
HEADERS = {"Content-Security-Policy": CSP, **QUIET, "Cache-Control": "no-cache"}  # kept, and asked about each time


@cache
def page() -> dict[str, tuple[bytes, str, str]]:
    """Every file: name beneath the page's directory → content, type, tag."""
    found = {}
    top = files(__package__) / "page"
    waiting = [("", top)] if top.is_dir() else []
    while waiting:
        prefix, directory = waiting.pop()
        for entry in directory.iterdir():
            name = f"{prefix}{entry.name}"
            if entry.is_dir():
                waiting.append((f"{name}/", entry))
            else:
                data = entry.read_bytes()
                found[name] = data, guess_type(name)[0] or "application/octet-stream", sha256(data).hexdigest()[:32]
    return found


async def index(_call: Call[Any, Any]) -> Response:
    if "index.html" not in page():
        raise Problem("not_found", "there is no such file of the page")
    data, kind, _ = page()["index.html"]
    nonce = token_urlsafe(16)
    policy = CSP.replace("style-src 'self'", f"style-src 'self' 'nonce-{nonce}'")
    headers = {"Content-Security-Policy": policy, **QUIET, "Cache-Control": "no-store"}
    return Response(data.replace(NONCE, NONCE + nonce.encode(), 1), headers=headers, media_type=kind)


async def asset(call: Call[Any, Any]) -> Response:
    return _file(call, f"assets/{call.params['name']}")


def _file(call: Call[Any, Any], name: str) -> Response:
    if name not in page():
        raise Problem("not_found", "there is no such file of the page")
    data, kind, tag = page()[name]
    headers = {**HEADERS, "ETag": f'"{tag}"'}
    if call.request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=kind)


ROUTES = (
    Route(
        "GET",
        "/",
        index,
        "The page.",
        reply_type="text/html",
        public=True,
        problems=("not_found",),
    ),
    Route(
        "GET",
        "/assets/{name...}",
        asset,
        "A file of the page.",
        reply_type="application/octet-stream",
        public=True,
        also={304: "As it was."},
        problems=("not_found",),
    ),
)
