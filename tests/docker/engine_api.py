"""The tests' own look at the engine, without the code under test."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import quote


def ask(address: str, verb: str, path: str, body: object = None) -> Any:
    text = said(address, verb, path, body)
    return json.loads(text) if text else None


def events(address: str, path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(address, "GET", path).splitlines()]


def said(address: str, verb: str, path: str, body: object = None) -> bytes:
    connection = http.client.HTTPConnection("docker", timeout=30)
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.settimeout(30)
        connection.sock.connect(address.removeprefix("unix://"))
        content = None if body is None else json.dumps(body)
        connection.request(verb, path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        assert response.status < 300, (response.status, text)
        return text


def containers_of(address: str, pid: int) -> list[dict[str, Any]]:
    """Those that this process owns, in any state."""
    filters = quote(json.dumps({"label": ["io.fumehood.owner"]}))
    found = ask(address, "GET", f"/containers/json?all=1&filters={filters}")
    return [each for each in found if each["Labels"]["io.fumehood.owner"].split(":")[1] == str(pid)]
