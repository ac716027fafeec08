"""Addresses, token files and headers: text from settings, other programs' files and clients."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from starlette.datastructures import Headers

from fumehood.backends.docker import address
from fumehood.backends.docker import client as docker
from fumehood.cli import serve_options
from fumehood.errors import ConfigurationError
from fumehood.server import files, ids, origins, respond, tokens
from fumehood.server.options import ServerOptions
from fumehood.server.problems import Problem

from .target import Target, fields, text


def check(data: bytes) -> None:
    """One line of text for all that take one, then a file, as one of tokens and as one of options."""
    line, file = fields(data, 2)
    said = text(line)
    try:
        address.parse(said, "DOCKER_HOST")
    except ConfigurationError:
        pass
    docker._version(said)
    docker._message(line)
    _check_headers(said)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "file")
        path.write_bytes(file)
        with suppress(ConfigurationError):
            tokens.Tokens(file=str(path)).find(said)
        with suppress(ConfigurationError):
            serve_options.in_file(str(path))


def _check_headers(said: str) -> None:
    assert ids.instance_of("s", said) is None or said.startswith("s_")
    options = ServerOptions()
    said = said.encode("utf-8", "surrogatepass").decode("latin-1")  # as a header comes
    assert not origins.host_allowed(said, options) or said.lower().startswith(("127.", "localhost", "[::1]"))
    for take in (
        lambda: respond.accepted(said),
        lambda: files._span(said, 100),
        lambda: origins.check_origin(
            Headers({"origin": said, "sec-fetch-site": said}), "a:1", options, navigates=False
        ),
    ):
        with suppress(Problem):
            take()
    files.disposition(said.encode("utf-8", "replace").decode()).encode("ascii")


TARGET = Target("addresses", check)
