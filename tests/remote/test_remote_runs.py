"""What a server has a say in, and what comes back from it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fumehood import AsyncSession, errors, get_sandbox, open_session
from fumehood.backends.remote import said
from fumehood.handed import Handed
from fumehood.types import FileStat, Limits, Output
from running import Running
from support import HANG_S

Client = Callable[..., dict[str, Any]]
_MB = 1024 * 1024


def test_the_limits_that_held_are_the_server_s(server: Running, client: Client) -> None:
    with get_sandbox(**client(server.url, memory_mb=500, processes=20)) as sandbox:
        result = sandbox.execute("keep = bytearray(b'x') * (400 << 20)")
    assert (result.meta["reason"], result.exit_code) == ("memory", 137)
    assert "memory limit of 200 MB" in result.stderr
    limits = result.meta["resource_limits"]
    assert (limits["memory_bytes"], limits["processes"]) == (200 * _MB, 20)
    assert result.meta["limits_clamped"] == ["memory_mb"]


def test_what_a_server_adds_to_a_result_is_of_its_shape_and_printable() -> None:
    evil = "\x1b[2J"
    told = said.ran(
        {
            "meta": {
                "packages": [evil, {"a": 1}, "b==1"] * 1000,
                "limits_clamped": evil,
                "blocked_imports": {evil: 1},
                "fallback": {"to": evil, "more": evil},
                "results_dropped": "many",
                evil: 1,
            }
        },
        Limits(),
    ).meta
    assert told["packages"][:3] == [" [2J", "", "b==1"]
    assert len(told["packages"]) == 1000
    assert told["fallback"] == {"from": "", "to": " [2J", "reason": ""}
    assert set(told) == {"packages", "fallback", "remote"}


def test_a_name_with_control_characters_is_not_listed_by_a_server_either() -> None:
    files = [{"path": f"/tmp/{name}", "size": 1, "version": "1"} for name in ("a", "\x1b[2J", "b\n", "c\x9b")]
    assert [stat.path for stat in said.listing({"files": files}, "/tmp")] == ["/tmp/a"]


def test_what_a_server_left_out_is_told_in_words_that_fit_on_a_line() -> None:
    entries = [{"path": "/tmp/output/a\nb", "why": "a\x1b[2Jlink"}, {"path": "…", "why": "9 more"}]
    wrong = [None, 1, {}, {"path": "/tmp/x"}, {"path": ["/tmp"], "why": []}]
    files = said.listing({"files": [], "left_out": entries + wrong}, "/tmp")
    assert [(stat.path, stat.why) for stat in files] == [("/tmp/output/a b", "a [2Jlink"), ("/tmp", "9 more")]
    assert len(said.listing({"files": [], "left_out": entries[:1] * 5000}, "/tmp")) == 1000
    for none in (None, {}, "x", 3):
        assert said.listing({"files": [], "left_out": none}, "/tmp") == []


def test_what_a_server_s_program_left_is_told_by_its_client(server: Running, client: Client, tmp_path: Path) -> None:
    code = """
import os
for number in range(22): open(f'/tmp/output/{number:02}', 'w').close()
os.symlink('/etc', '/tmp/output/link')
open('/tmp/output/new\\nline', 'w').close()
"""
    bad_name = "its name has control characters or bytes that are not UTF-8"

    async def one_shot() -> Handed:
        handed = Handed()
        with get_sandbox(**client(server.url)) as sandbox:
            await sandbox.stream(code, handed=handed).whole()
        return handed

    handed = asyncio.run(asyncio.wait_for(one_shot(), HANG_S))
    assert len(handed.files) == 20
    assert {entry["path"].rpartition("/")[2]: entry["why"] for entry in handed.left_out} == {
        "20": "more than 20 files",
        "21": "more than 20 files",
        "new\\nline": "more than 20 files",
        "link": "a symbolic link, which is never followed",
    }
    with open_session(**client(server.url, output_dir=str(tmp_path))) as session:
        warnings = session.run(code).meta["output_warnings"]
        assert "/tmp/output/link was not copied: a symbolic link, which is never followed" in warnings
        assert f"/tmp/output/new\\nline was not copied: {bad_name}" in warnings
        assert len(session.files()) == 22


def test_a_listing_is_read_beside_the_loop(server: Running, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    listing = said.listing

    def watched(found: object, directory: str) -> list[FileStat]:
        threads.add(threading.get_ident())
        return listing(found, directory)

    monkeypatch.setattr(said, "listing", watched)

    async def scenario() -> None:
        async with AsyncSession(**client(server.url)) as session:
            await session.write("/workspace/a", "a")
            assert [stat.path for stat in await session.files()] == ["/workspace/a"]

    asyncio.run(asyncio.wait_for(scenario(), HANG_S))
    assert threads
    assert threading.get_ident() not in threads


def test_the_server_s_ceiling_of_time_is_told(start: Callable[..., Running], client: Client) -> None:
    running = start(env={"SANDBOX_MAX_TIMEOUT_SEC": "1", "SANDBOX_TIMEOUT_SEC": "1"})
    with get_sandbox(**client(running.url)) as sandbox, open_session(**client(running.url)) as session:
        for result in (sandbox.execute("while True: pass", timeout=30), session.run("while True: pass", timeout=30)):
            assert (result.exit_code, result.meta["reason"]) == (-1, "timeout")
            assert "timed out after 1 s" in result.stderr


def test_every_line_of_a_receipt_says_whose_word_it_is(server: Running, client: Client) -> None:
    with get_sandbox(**client(server.url)) as sandbox:
        receipt = sandbox.check()
    assert all(axis.mechanism.startswith("said by the server: ") for axis in receipt.axes.values())


def test_a_level_that_the_server_does_not_have_is_refused_there(start: Callable[..., Running], client: Client) -> None:
    running = start(env={"SANDBOX_ISOLATION": "process"})
    with get_sandbox(**client(running.url)) as sandbox:
        assert sandbox.execute("print(1)").meta["isolation"]["level"] == "process"
    for make in (get_sandbox, open_session):
        with make(**client(running.url, require="sealed")) as made, pytest.raises(errors.IsolationUnavailable):
            made.check()


def test_what_the_server_does_not_allow(server: Running, client: Client) -> None:
    with get_sandbox(**client(server.url, supported_languages="python,bash")) as sandbox:
        with pytest.raises(errors.LanguageNotAllowed, match="the server does not allow it"):
            sandbox.execute("echo 1", "bash")
    with open_session(**client(server.url)) as session:
        assert session.exec(["echo", "1"]).stdout == "1\n"
        with pytest.raises(errors.CommandNotAllowed, match="the server does not allow it"):
            session.exec(["cat"])


def test_the_server_s_import_screen_says_why(start: Callable[..., Running], client: Client) -> None:
    running = start(env={"SANDBOX_BLOCK_DANGEROUS_IMPORTS": "true"})
    with get_sandbox(**client(running.url)) as sandbox, open_session(**client(running.url)) as session:
        for result in (sandbox.execute("import socket"), session.run("import socket")):
            assert (result.exit_code, result.meta["reason"]) == (1, "error")
            assert "socket" in result.stderr
            assert result.meta["blocked_imports"] == ["socket"]


def test_output_comes_byte_for_byte(server: Running, client: Client) -> None:
    code = "import random, sys; r = random.Random(7); sys.stdout.buffer.write(r.randbytes(3_000_000))"
    expected = __import__("random").Random(7).randbytes(3_000_000)
    with open_session(**client(server.url)) as session, session.stream(code) as stream:
        got = b"".join(event.data for event in stream if isinstance(event, Output) and event.stream == "stdout")
    assert got == expected


def test_a_dataset_that_is_too_large_for_the_server(server: Running, client: Client, tmp_path: Path) -> None:
    with (tmp_path / "big.csv").open("wb") as file:
        os.truncate(file.fileno(), 60_000 * _MB)  # nobody could read that first
    with open_session(datasets={"big": tmp_path / "big.csv"}, **client(server.url)) as session:
        with server.client() as http:
            before = {each["session_id"] for each in http.get("/sessions").json()["sessions"]}
            with pytest.raises(errors.BadArgument, match=r"big\.csv.* of 60000 MB does not fit on the server"):
                session.run("1")
            assert {each["session_id"] for each in http.get("/sessions").json()["sessions"]} <= before


def test_a_dataset_is_sent_as_it_is_read(server: Running, client: Client, tmp_path: Path) -> None:
    content = os.urandom(_MB) * 40
    (tmp_path / "data.bin").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    del content
    with open_session(datasets={"data": tmp_path / "data.bin"}, **client(server.url)) as session:
        tracemalloc.start()
        try:
            session.exec(["true"])  # it is there from now on
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        code = "import hashlib; print(hashlib.sha256(open('/tmp/data/data.bin', 'rb').read()).hexdigest())"
        assert session.run(code).stdout == f"{digest}\n"
    assert most < 20 * _MB


def test_a_dataset_that_becomes_shorter_meanwhile(
    server: Running, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("a,b\n", encoding="utf-8")
    monkeypatch.setattr("fumehood.engine.lend.size_of", lambda *_: 100)
    with open_session(datasets={"a": tmp_path / "a.csv"}, **client(server.url)) as session:
        with pytest.raises(errors.BadArgument, match=r"dataset .*a\.csv became shorter while it was sent; try again"):
            session.run("1")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_dataset_that_may_no_longer_be_read(server: Running, client: Client, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n", encoding="utf-8")
    with open_session(datasets={"a": tmp_path / "a.csv"}, **client(server.url)) as session:
        (tmp_path / "a.csv").chmod(0)
        with pytest.raises(errors.BadArgument, match=r"a\.csv cannot be read"):
            session.run("1")


def test_more_input_than_the_server_takes_is_not_sent(server: Running, client: Client) -> None:
    with get_sandbox(**client(server.url)) as sandbox:
        with pytest.raises(errors.BadArgument, match="more than the server takes"):
            sandbox.execute("pass", stdin=b"x" * (30 * _MB))
        assert sandbox.execute("print(1)").stdout == "1\n"


def test_requirements_are_installed_by_the_server(
    start: Callable[..., Running], client: Client, tmp_path: Path
) -> None:
    house = tmp_path / "house"
    house.mkdir()
    info = "farpkg-1.0.dist-info"
    files = {
        "farpkg.py": "where = 'far'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: farpkg\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(house / "farpkg-1.0-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": "".join(f"{path},,\n" for path in files)}.items():
            archive.writestr(path, text)
    packages = tmp_path / "packages"
    packages.mkdir(mode=0o755)
    running = start(env={"SANDBOX_WHEELHOUSE": str(house), "SANDBOX_PACKAGES_DIR": str(packages)})
    code = "import farpkg; print(farpkg.where)"
    with get_sandbox(**client(running.url)) as sandbox:
        result = sandbox.execute(code, requirements=["farpkg"])
        assert (result.stdout, result.stderr, result.meta["packages"]) == ("far\n", "", ["farpkg==1.0"])
        with pytest.raises(errors.PackageError):
            sandbox.execute(code, requirements=["no-such-package-anywhere"])
    with open_session(**client(running.url)) as plain:
        assert "ModuleNotFoundError" in plain.run(code).stderr
        assert plain.run(code, requirements=["farpkg"]).stdout == "far\n"
    with open_session(requirements=["farpkg"], **client(running.url)) as session:
        result = session.run(code)
        assert (result.stdout, result.meta["packages"]) == ("far\n", ["farpkg==1.0"])
    few = client(running.url, allowed_packages="numpy")
    with get_sandbox(**few) as sandbox, pytest.raises(errors.PackageError, match="SANDBOX_ALLOWED_PACKAGES"):
        sandbox.execute(code, requirements=["farpkg"])


def test_a_server_may_stand_before_another(start: Callable[..., Running], client: Client) -> None:
    last = start()
    settings = {key: value for key, value in client(last.url).items() if key != "store_code"}
    first = start(env={f"SANDBOX_{name.upper()}": str(value) for name, value in settings.items()})
    with first.client() as http:
        asked = {
            "code": "import sys; print(open('a').read()); open('/tmp/output/b', 'w').write('out')",
            "files": [{"path": "a", "content_base64": "aW4="}],
        }
        found = http.post("/execute", json=asked).json()
        assert (found["stdout"], [file["path"] for file in found["files"]]) == ("in\n", ["/tmp/output/b"])
        asked["files"].append({"path": "/tmp/c", "content_base64": "aW4="})  # type: ignore[attr-defined]
        assert http.post("/execute", json=asked).json()["stdout"] == "in\n"
    with open_session(**client(first.url)) as session:
        assert session.run("x = 6").exit_code == 0
        assert session.run("x * 7").meta["results"] == [{"text/plain": "42"}]
        assert session.run("while True: pass", timeout=1).meta["state"] == "kept"
        assert session.run("x").meta["results"] == [{"text/plain": "6"}]
