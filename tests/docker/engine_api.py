"""The tests' own look at the engine, without the code under test."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from docker_engine import IMAGE
from support import HANG_S

# For the programs that tests start as hosts of their own: as patient as the tests themselves.
PATIENT = f"""
from fumehood.backends import docker
from fumehood.backends.docker import client, container, pool, sandbox
client.ANSWER_S = client._PING_S = client._LAST_S = client._COMING_S = container._MAKE_S = pool._CLOSE_S = {HANG_S}
client.ALIVE_S = docker._READY_S = {HANG_S}
"""


def ask(address: str, verb: str, path: str, body: object = None) -> Any:
    text = said(address, verb, path, body)
    return json.loads(text) if text else None


@contextmanager
def created(address: str, label: str) -> Iterator[list[str]]:
    """The containers with this label that come into being meanwhile. Listened to: an engine keeps few past events."""
    found: list[str] = []
    last = f"fumehood-test-{os.urandom(8).hex()}"
    filters = quote(json.dumps({"event": ["create"], "label": [label]}))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(HANG_S)
        connection.connect(address.removeprefix("unix://"))
        connection.sendall(f"GET /events?since={time.time():.6f}&filters={filters} HTTP/1.0\r\n\r\n".encode())
        lines = connection.makefile("rb")
        assert b" 200 " in lines.readline()
        yield found
        name, _, value = label.partition("=")
        ask(address, "POST", f"/containers/create?name={last}", {"Image": IMAGE, "Labels": {name: value}})
        ask(address, "DELETE", f"/containers/{last}?force=1")
        for line in lines:
            if line.startswith(b"{"):
                name = json.loads(line)["Actor"]["Attributes"]["name"]
                if name == last:
                    return
                found.append(name)
        raise AssertionError("the engine ended its events")


def said(address: str, verb: str, path: str, body: object = None) -> bytes:
    connection = http.client.HTTPConnection("docker")
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.settimeout(HANG_S)
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
