"""The testing checklist of the tool document, point by point, through the tools and on the real backend."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood import IsolationUnavailable
from fumehood.tools import Toolbox
from marked import gone, is_up, new_marker
from pace import at_some_pace
from support import HANG_S

PNG = b"\x89PNG\r\n\x1a\n"
DATA = "matplotlib", "numpy", "polars", "sklearn"
REPLY = {
    *("exit_code", "stdout", "stderr", "stdout_truncated", "stderr_truncated"),
    *("output_files", "total_output_files", "execution_time", "hint"),
}


class Handler:
    def __init__(self) -> None:
        self.shown: list[str] = []

    def send_visualization(self, path: str) -> None:
        self.shown.append(path)


class Tools:
    """A toolbox with its calls by name."""

    def __init__(self, box: Toolbox, output: Path, handler: Handler) -> None:
        self.box, self.output, self.handler = box, output, handler

    def exec(self, *command: str, **named: Any) -> dict[str, Any]:
        arguments = {"command": list(command), "timeout": HANG_S, **named}
        reply = self.box.call("sandbox_exec", arguments, "because")
        assert set(reply) == REPLY, reply
        return reply

    def write(self, path: str, content: str) -> dict[str, Any]:
        return self.box.call("sandbox_write_file", {"file_path": path, "content": content}, "because")

    def edit(self, path: str, old: str, new: str) -> dict[str, Any]:
        arguments = {"file_path": path, "old_string": old, "new_string": new}
        return self.box.call("sandbox_edit_file", arguments, "because")

    def script(self, text: str, **named: Any) -> dict[str, Any]:
        """Write a script and run it, which is the document's workflow."""
        assert self.write("/tmp/script.py", text)["success"]
        return self.exec("python", "/tmp/script.py", **named)


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    data = tmp_path / "prescribers.csv"
    chance = random.Random(42)
    rows = (f"{chance.gauss(centre, 2):.3f},{chance.gauss(centre, 2):.3f}\n" for centre in (0, 20, 40) * 100)
    data.write_text("volume,count\n" + "".join(rows), "utf-8")
    with opened(tmp_path, {"prescribers": data}) as found:
        yield found


class opened:  # noqa: N801 - reads as a function
    def __init__(self, tmp_path: Path, datasets: dict[str, Path], **settings: Any) -> None:
        handler = Handler()
        box = Toolbox(
            datasets,
            "checklist",
            handler,
            type="local",
            require="sealed",
            store_code="never",
            output_dir=str(tmp_path / "output"),
            timeout_sec=HANG_S,
            **settings,
        )
        self.tools = Tools(box, tmp_path / "output" / "session_checklist", handler)

    def __enter__(self) -> Tools:
        try:
            self.tools.box.session.check()
        except IsolationUnavailable as missing:
            self.tools.box.close()
            pytest.skip(f"the document's paths are those of a sandbox with a root of its own: {missing}")
        return self.tools

    def __exit__(self, *_: object) -> None:
        self.tools.box.close()


def need(*modules: str) -> None:
    for module in modules:
        pytest.importorskip(module, reason=f"the document's programs use {module}")


def png_in(path: Path) -> bool:
    return path.read_bytes().startswith(PNG)


# ---- the twelve points


def test_simple_python_execution_hello_world(tools: Tools) -> None:
    reply = tools.script("print('hello world')")
    assert (reply["exit_code"], reply["stdout"], reply["stderr"]) == (0, "hello world\n", "")
    assert reply["hint"] == "Code executed but no outputs in /tmp/output/. Verify script saves results."


def test_csv_loading_from_tmp_data(tools: Tools) -> None:
    reply = tools.script(
        "import csv\nrows = list(csv.DictReader(open('/tmp/data/prescribers.csv')))\nprint(len(rows), list(rows[0]))"
    )
    assert reply["stdout"] == "300 ['volume', 'count']\n"
    assert tools.exec("head", "-1", "/tmp/data/prescribers.csv")["stdout"] == "volume,count\n"


def test_polars_analysis_with_results(tools: Tools) -> None:
    need("polars")
    reply = tools.script(
        "import polars as pl\n"
        "df = pl.read_csv('/tmp/data/prescribers.csv')\n"
        "df.select(pl.all().mean()).write_csv('/tmp/output/means.csv')\n"
        "print(df.height, 'rows')\n"
    )
    assert (reply["exit_code"], reply["stdout"]) == (0, "300 rows\n"), reply
    assert (reply["output_files"], reply["total_output_files"]) == (["means.csv"], 1)
    header, means = (tools.output / "means.csv").read_text("utf-8").split()
    assert header == "volume,count"
    assert all(19 < float(mean) < 21 for mean in means.split(","))


def example(tools: Tools) -> str:
    """The program in the system prompt, as printed there."""
    (code,) = re.findall(r"```python\n(.*?)```", tools.box.system_prompt(), re.DOTALL)
    return code


@pytest.mark.parametrize("count", [20_000, pytest.param(200_000, marks=pytest.mark.soak)])
def test_sklearn_clustering_and_visualization(tmp_path: Path, count: int) -> None:
    """The system prompt's example as printed; in the long form, on as many rows as the document promises."""
    need(*DATA)
    data = tmp_path / "prescribers.csv"
    chance = random.Random(7)
    with data.open("w", encoding="utf-8") as file:
        file.write("volume,count\n")
        for number in range(count):
            centre = number % 3 * 50
            file.write(f"{centre + chance.random() * 10:.4f},{centre + chance.random() * 10:.4f}\n")
    with opened(tmp_path, {"prescribers": data}) as tools:
        reply = tools.script(example(tools))
        assert (reply["exit_code"], reply["stdout"]) == (0, "Created 3 clusters\n"), reply
        assert sorted(reply["output_files"]) == ["clustered.csv", "plot.png"]
        assert png_in(tools.output / "plot.png")
        assert tools.handler.shown == [str(tools.output / "plot.png")]
        assert (tools.output / "clustered.csv").read_bytes().count(b"\n") == count + 1
        assert tools.exec("wc", "-l", "/tmp/output/clustered.csv")["stdout"].startswith(f"{count + 1} ")


def test_error_recovery_buggy_code_fix_success(tools: Tools) -> None:
    """Pattern 1 of the document."""
    reply = tools.script("total = sum([1, 2, 3])\nprint('total', totl)\nopen('/tmp/output/t.txt', 'w').write('6')\n")
    assert reply["exit_code"] == 1
    assert "NameError: name 'totl' is not defined" in reply["stderr"]
    assert "/tmp/script.py" in reply["stderr"]
    assert reply["hint"] == "Execution failed. Review stderr and use sandbox_edit_file to fix errors."
    fixed = tools.edit("/tmp/script.py", "totl", "total")
    assert fixed == {
        "success": True,
        "file_path": "/tmp/script.py",
        "hint": "File edited successfully. Re-run with sandbox_exec.",
    }
    again = tools.exec("python", "/tmp/script.py")
    assert (again["exit_code"], again["stdout"], again["output_files"]) == (0, "total 6\n", ["t.txt"])
    assert again["hint"] == (
        "Code executed successfully. 1 output files created. Consider using 'complete' to present results."
    )


def test_edit_uniqueness_error_read_fix_success(tools: Tools) -> None:
    """Pattern 2 of the document."""
    script = "a = 1\nb = 1\nc = 1\nprint(a + b + c)\n"
    assert tools.write("/tmp/script.py", script)["bytes_written"] == len(script)
    refused = tools.edit("/tmp/script.py", "= 1", "= 2")
    assert refused == {
        "success": False,
        "error": "old_string found 3 times - not unique. Include more context.",
        "file_path": "/tmp/script.py",
        "hint": "Edit failed - old_string not unique. Include more surrounding context.",
    }
    read = tools.exec("cat", "/tmp/script.py")
    assert read["stdout"] == script
    assert tools.edit("/tmp/script.py", "b = 1", "b = 40")["success"]
    assert tools.exec("python", "/tmp/script.py")["stdout"] == "42\n"


def test_missing_output_look_fix_success(tools: Tools) -> None:
    """Pattern 3 of the document, which is not on its checklist."""
    reply = tools.script("open('/tmp/result.csv', 'w').write('a\\n1\\n')\n")
    assert (reply["exit_code"], reply["output_files"], reply["total_output_files"]) == (0, [], 0)
    assert reply["hint"] == "Code executed but no outputs in /tmp/output/. Verify script saves results."
    looked = tools.exec("ls", "-la", "/tmp/output")
    assert looked["exit_code"] == 0
    assert "result.csv" not in looked["stdout"]
    assert tools.edit("/tmp/script.py", "/tmp/result.csv", "/tmp/output/result.csv")["success"]
    assert tools.exec("python", "/tmp/script.py")["output_files"] == ["result.csv"]
    assert (tools.output / "result.csv").read_text("utf-8") == "a\n1\n"


def test_multiple_files_in_tmp_output(tools: Tools) -> None:
    reply = tools.script(
        "import json, os\nos.makedirs('/tmp/output/deep')\n"
        "open('/tmp/output/a.csv', 'w').write('a\\n')\n"
        "json.dump({'k': 1}, open('/tmp/output/b.json', 'w'))\n"
        "open('/tmp/output/deep/c.log', 'w').write('error here\\n')\n"
        "open('/tmp/output/model.pkl', 'wb').write(b'x')\n"
        "open('/tmp/output/p.svg', 'w').write('<svg/>')\n"
    )
    assert sorted(reply["output_files"]) == ["a.csv", "b.json", "deep/c.log", "model.pkl", "p.svg"]
    assert reply["total_output_files"] == 5
    copied = sorted(str(path.relative_to(tools.output)) for path in tools.output.rglob("*") if path.is_file())
    assert copied == ["a.csv", "b.json", "deep/c.log", "p.svg"]
    assert tools.handler.shown == [str(tools.output / "p.svg")]
    assert json.loads(tools.exec("cat", "/tmp/output/b.json")["stdout"]) == {"k": 1}
    assert tools.exec("grep", "error", "/tmp/output/deep/c.log")["stdout"] == "error here\n"
    assert tools.exec("wc", "-l", "/tmp/output/a.csv")["stdout"] == "1 /tmp/output/a.csv\n"


def test_large_stdout_truncation(tools: Tools) -> None:
    reply = tools.script("for n in range(100_000): print('line', n)")
    assert (reply["stdout_truncated"], reply["stderr_truncated"]) == (True, False)
    assert len(reply["stdout"].encode()) <= 10 * 1024 + 100
    assert reply["stdout"].startswith("line 0\n")
    assert reply["stdout"].endswith("line 99999\n")
    small = tools.script("print('x' * 10_000)")
    assert (small["stdout_truncated"], len(small["stdout"])) == (False, 10_001)


@pytest.mark.parametrize("path", ["/home/bad.py", "/tmp/../home/bad.py", "/etc/passwd", "bad.py", "/tmp"])
def test_path_validation_reject_home(tools: Tools, path: str) -> None:
    refusal = {
        "success": False,
        "error": "Invalid path: must be /tmp/* or /workspace/*",
        "file_path": path,
        "hint": "Invalid path. Use /tmp/ or /workspace/ only.",
    }
    assert tools.write(path, "x") == refusal
    assert tools.edit(path, "x", "y") == refusal
    assert tools.write("/workspace/good.py", "x") == {
        "success": True,
        "file_path": "/workspace/good.py",
        "bytes_written": 1,
        "hint": "File written successfully. Use sandbox_exec to run it.",
    }


NETWORK = """
import socket, urllib.request
print('ran')
for attempt in (
    lambda: socket.create_connection(('192.0.2.1', 80), 30),
    lambda: socket.create_connection(('2001:db8::1', 80), 30),
    lambda: socket.getaddrinfo('example.org', 80),
    lambda: urllib.request.urlopen('http://192.0.2.1/', timeout=30),
    lambda: urllib.request.urlopen('http://example.org/', timeout=30),
):
    try:
        attempt()
        print('open')
    except OSError as error:
        print('blocked', error)
"""


def test_network_blocking_requests_fails(tools: Tools) -> None:
    reply = tools.script(NETWORK)
    assert reply["stdout"].startswith("ran\n"), reply
    assert reply["stdout"].count("blocked") == 5
    assert "open" not in reply["stdout"].split()
    assert "timed out" not in reply["stdout"]
    stateful = tools.box.call("run_python_code", {"code": NETWORK})
    assert json.dumps(stateful).count("blocked") >= 5
    assert "ran" in json.dumps(stateful)


def test_timeout_enforcement(tools: Tools) -> None:
    def is_cut(timeout: float) -> bool:
        reply = tools.script("print('began', flush=True)\nimport time\ntime.sleep(3600)", timeout=timeout)
        assert reply["exit_code"] == -1
        assert f"timed out after {timeout:g} s" in reply["stderr"]
        assert reply["execution_time"] >= timeout
        return reply["stdout"] == "began\n"

    assert at_some_pace(is_cut)
    assert tools.exec("echo", "alive")["stdout"] == "alive\n"


def test_context_cleanup_sandbox_termination(tools: Tools) -> None:
    marker = new_marker()
    code = f"import subprocess; subprocess.Popen(['sleep', '{marker}'])\nopen('/tmp/output/a.txt', 'w').write('kept');"
    reply = tools.box.call("run_python_code", {"code": code})
    assert reply["exit_code"] == 0, reply
    assert is_up(marker)
    tools.box.close()
    assert gone(marker)
    assert (tools.output / "a.txt").read_text("utf-8") == "kept"
    ended = tools.box.call("sandbox_exec", {"command": ["echo"]})
    assert (ended["success"], ended["exit_code"]) == (False, 125)


# ---- and what the document promises of it


def test_files_and_state_are_shared_by_all_tools(tools: Tools) -> None:
    assert tools.write("/workspace/shared.txt", "by a tool")["success"]
    assert tools.box.call("run_python_code", {"code": "text = open('/workspace/shared.txt').read()"})["exit_code"] == 0
    again = tools.box.call("run_python_code", {"code": "print(text)"})
    assert "by a tool" in json.dumps(again)
    assert tools.exec("cat", "shared.txt")["stdout"] == "by a tool"
