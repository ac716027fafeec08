"""What the documentation tells to type at a server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from running import TOKENS, Running
from support import HANG_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("page", ["README.md", "docs/server.md"])
def test_the_curl_command_answers(server: Running, page: str) -> None:
    command = re.search(r"^```sh\n(curl .*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert command is not None
    typed = command[1].replace("http://127.0.0.1:8080", server.url)
    assert server.url in typed
    env = {**os.environ, "TOKEN": TOKENS["alice"], "no_proxy": "127.0.0.1"}
    said = subprocess.run(["bash", "-c", typed.encode()], env=env, capture_output=True, timeout=HANG_S, check=True)
    answer = json.loads(said.stdout)
    assert (answer["stdout"], answer["exit_code"]) == ("42\n", 0)
