"""One request to a server in a container, from within its network: token and path; the body comes in."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

token, path = sys.argv[1:]
headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
request = urllib.request.Request(f"http://127.0.0.1:8080{path}", sys.stdin.buffer.read() or None, headers)
try:
    answer = urllib.request.urlopen(request, timeout=280)
except urllib.error.HTTPError as error:
    answer = error
sys.stdout.buffer.write(f"{answer.status}\n".encode() + answer.read())
