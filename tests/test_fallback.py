"""SANDBOX_FALLBACK: who stands in, when, and that it is said."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docker_engine import docker, docker_host
from fumehood import (
    AsyncSession,
    BackendUnavailable,
    ConfigurationError,
    IsolationUnavailable,
    SandboxLost,
    UnknownBackend,
    fallback,
    get_sandbox,
    open_session,
    registry,
)
from fumehood.backends.base import Process, Sandbox, SandboxSpec
from fumehood.backends.fake import FakeBackend
from fumehood.cli.main import main
from fumehood.tools import Toolbox, run_python_code
from fumehood.types import Command, Output
from support import DRIVERS, HANG_S, AsyncOnly, execute

__all__ = ["docker", "docker_host"]

NO_DAEMON = "Docker daemon not available"


@pytest.fixture(autouse=True)
def dead_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Docker is chosen, and not there."""
    pytest.importorskip("httpx2", reason="the docker backend needs it: pip install 'fumehood[docker]'")
    monkeypatch.setattr(fallback, "_outages", {})
    address = f"unix:///tmp/fumehood-no-{os.urandom(8).hex()}.sock"
    for name, value in {
        "SANDBOX_TYPE": "docker",
        "SANDBOX_FALLBACK": "local",
        "DOCKER_HOST": address,
        "SANDBOX_ARTIFACTS_DIR": str(tmp_path / "artifacts"),
        "SANDBOX_OUTPUT_DIR": str(tmp_path / "output"),
        "SANDBOX_PACKAGES_DIR": str(tmp_path / "packages"),
    }.items():
        monkeypatch.setenv(name, value)
    return address


def is_stamped(stamp: Any, to: str = "local") -> bool:
    return (stamp["from"], stamp["to"]) == ("docker", to) and NO_DAEMON in stamp["reason"]


# ---- one-shots


def test_the_fallback_runs_it_and_the_result_says_so() -> None:
    with get_sandbox() as sandbox:
        result = sandbox.execute("print(6 * 7)")
        assert (result.stdout, result.meta["runtime"]) == ("42\n", "local")
        assert is_stamped(result.meta["fallback"])
        assert is_stamped(sandbox.check().fallback)
        again = asyncio.run(sandbox.execute_async("print(1)"))
        assert is_stamped(again.meta["fallback"])


def test_its_limits_are_those_of_the_backend_that_runs_it() -> None:
    with get_sandbox(memory_mb=300, docker_memory_limit="64m") as sandbox:
        assert sandbox.execute("1").meta["resource_limits"]["memory_bytes"] == 300 << 20


def test_docker_as_the_fallback_has_the_limits_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")  # where the local backend cannot be had
    with get_sandbox(type="local", fallback="fake", docker_memory_limit="64m") as sandbox:
        assert sandbox.execute("1").meta["fallback"]["from"] == "local"
    settings = fallback.Spare(sandbox.settings._replace(fallback="docker")).settings
    assert settings.limits().memory_bytes == 64 << 20


def test_without_a_fallback_the_message_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDBOX_FALLBACK")
    with pytest.raises(BackendUnavailable) as caught, get_sandbox() as sandbox:
        sandbox.execute("1")
    assert str(caught.value).startswith(NO_DAEMON)
    assert str(caught.value).endswith("Set SANDBOX_TYPE=local or start Docker daemon")


def test_a_fallback_that_gives_less_than_is_required_is_not_used() -> None:
    with pytest.raises(BackendUnavailable) as caught, get_sandbox(require="sealed", isolation="process") as sandbox:
        sandbox.execute("1")
    assert str(caught.value).startswith(NO_DAEMON)
    assert "'local' (SANDBOX_FALLBACK) was not used: level sealed is required" in str(caught.value)


def test_the_receipt_decides_whatever_the_backend_thinks_of_require(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeBackend] = []

    def lax(_: object) -> FakeBackend:
        made.append(FakeBackend())  # knows nothing of what is required
        return made[-1]

    real = registry.factory
    monkeypatch.setattr(registry, "factory", lambda name: lax if name == "fake" else real(name))
    with pytest.raises(BackendUnavailable, match="'confined' isolation is required"):
        get_sandbox(fallback="fake", require="confined").execute("1")
    with open_session(fallback="fake", require="confined") as session, pytest.raises(BackendUnavailable):
        session.run("1")
    assert [backend.commands for backend in made] == [[], []]


def test_a_refused_level_is_not_mended_by_the_fallback() -> None:
    with pytest.raises(IsolationUnavailable):
        get_sandbox(type="fake", fallback="local", require="sealed").execute("1")


def test_a_bad_address_is_not_mended_by_the_fallback() -> None:
    with pytest.raises(ConfigurationError, match="DOCKER_HOST"):
        get_sandbox(docker_host="carrier-pigeon://there").execute("1")


def test_an_unknown_type_is_not_mended_by_the_fallback() -> None:
    with pytest.raises(UnknownBackend, match="Did you mean 'docker'"):
        get_sandbox(type="dokcer")


def test_a_fallback_that_is_no_backend_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="SANDBOX_FALLBACK"):
        get_sandbox(fallback="locla")
    with pytest.raises(ConfigurationError, match="SANDBOX_FALLBACK"):
        open_session(fallback="locla")


def test_a_fallback_that_is_the_backend_chosen_has_no_effect() -> None:
    with pytest.raises(BackendUnavailable, match=NO_DAEMON) as caught, get_sandbox(fallback="docker") as sandbox:
        sandbox.execute("print(1)")
    assert "SANDBOX_FALLBACK" not in str(caught.value)
    with get_sandbox(type="local") as sandbox:  # the environment's fallback is local too
        result = sandbox.execute("print(1)")
    assert result.stdout == "1\n"
    assert "fallback" not in result.meta


def test_a_backend_whose_package_is_missing_is_one_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    for name in [name for name in sys.modules if name.startswith("fumehood.backends.docker")]:
        monkeypatch.delitem(sys.modules, name)
    with get_sandbox() as sandbox, open_session() as session:
        assert "fumehood[docker]" in sandbox.execute("1").meta["fallback"]["reason"]
        assert "fumehood[docker]" in session.run("1").meta["fallback"]["reason"]


def test_a_fallback_that_cannot_be_had_either_leaves_the_first_error() -> None:
    with pytest.raises(BackendUnavailable, match=rf"^{NO_DAEMON}.* was not used: .*not part of this version"):
        get_sandbox(fallback="modal").execute("1")


# ---- what has run is not run elsewhere


class Flaky(AsyncOnly):
    """Makes one sandbox, which is lost while its program runs; then it cannot be had."""

    sandboxes = 1

    def __init__(self, settings: object = None) -> None:  # noqa: ARG002
        super().__init__(FakeBackend(replies=lambda _: _breaks()))
        self.made = 0

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.made += 1
        if self.made > self.sandboxes:
            raise BackendUnavailable("gone")
        return await self.inner.create(spec)


class FlakyLate(Flaky):
    """The same, found out only when the program is to start."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.made += 1
        return await self.inner.create(spec) if self.made <= self.sandboxes else _Absent()


class _Absent(Sandbox):
    async def start(self, command: Command) -> Process:  # noqa: ARG002
        raise BackendUnavailable("gone")

    async def close(self) -> None:
        pass


class Gone(Flaky):
    sandboxes = 0


def _breaks() -> Iterator[Output]:
    yield Output("stdout", b"once\n")
    raise SandboxLost("lost")


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "flaky", (__name__, "Flaky"))
    monkeypatch.setitem(registry._BUILT_IN, "flaky-late", (__name__, "FlakyLate"))


@pytest.mark.usefixtures("flaky")
@pytest.mark.parametrize("name", ["flaky", "flaky-late"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_program_that_has_begun_is_not_given_to_the_fallback(driver: str, name: str) -> None:
    with get_sandbox(type=name) as sandbox, pytest.raises(SandboxLost, match="gone"):
        execute(driver, sandbox, "1")


@pytest.mark.usefixtures("flaky")
def test_a_session_that_has_begun_stays_where_it_is() -> None:
    with open_session(type="flaky", start_retries=0) as session:
        with pytest.raises(SandboxLost):
            session.run("1")
        with pytest.raises(BackendUnavailable, match="gone"):
            session.run("1")
        assert session.backend_name != "local"


def test_a_backend_that_was_given_is_used_as_it_is() -> None:
    with pytest.raises(BackendUnavailable, match=r"^gone$"):
        get_sandbox(Gone()).execute("1")


# ---- sessions


def test_a_session_moves_before_its_first_sandbox(tmp_path: Path) -> None:
    data = tmp_path / "numbers.csv"
    data.write_text("a,b\n1,2\n", "utf-8")
    with open_session(datasets={"numbers": data}, memory_mb=300) as session:
        first = session.run("x = 42")
        assert session.run("x").meta["results"] == [{"text/plain": "42"}]
        assert session.exec(["cat", session.datasets["numbers"]]).stdout == "a,b\n1,2\n"
        for result in (first, session.exec(["sh", "-c", f"echo hi > {session.places.output}/hi"])):
            assert result.meta["runtime"] == "local"
            assert is_stamped(result.meta["fallback"])
            assert result.meta["resource_limits"]["memory_bytes"] == 300 << 20
        assert (session.backend_name, session.settings.type) == ("local", "local")
        assert Path(session.output_dir, "hi").read_text("utf-8") == "hi\n"
        assert is_stamped(session.check().fallback)


def test_an_asynchronous_session_does_too_whatever_its_first_call_is() -> None:
    async def first_calls() -> None:
        async with AsyncSession() as session:
            assert is_stamped((await session.check()).fallback)
        async with AsyncSession() as session:
            assert await session.files() == []
            assert await session.write(f"{session.places.workspace}/a", "abc") == 3
            async with session.stream("print(open('a').read())") as events:
                assert b"abc\n" in [event.data async for event in events if isinstance(event, Output)]
            assert is_stamped(events.result.meta["fallback"])

    asyncio.run(first_calls())


def test_a_session_whose_fallback_gives_too_little_says_both() -> None:
    with open_session(require="sealed", isolation="process", store_code="always") as session:
        with pytest.raises(BackendUnavailable, match=f"^{NO_DAEMON}.*was not used: level sealed is required"):
            session.run("print(1)")
        with pytest.raises(BackendUnavailable):
            session.write("/workspace/a", "abc")


def test_requirements_are_found_there(wheelhouse: Path) -> None:
    with get_sandbox(wheelhouse=str(wheelhouse)) as sandbox:
        result = sandbox.execute("import greeting; print(greeting.WORD)", requirements=["greeting"])
    assert result.stdout == "hello\n"
    assert is_stamped(result.meta["fallback"])
    with open_session(wheelhouse=str(wheelhouse)) as session:  # a call aside is its first
        result = session.run("import greeting; print(greeting.WORD)", requirements=["greeting"])
        assert result.stdout == "hello\n"
        assert is_stamped(result.meta["fallback"])
        assert session.run("print(1)").stdout == "1\n"


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Path:
    house = tmp_path / "wheels"
    house.mkdir()
    with zipfile.ZipFile(house / "greeting-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("greeting.py", "WORD = 'hello'\n")
        info = "greeting-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"greeting.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return house


def test_a_model_is_told_of_the_backend_that_runs() -> None:
    with Toolbox(memory_mb=300, docker_memory_limit="64m") as tools:
        (said,) = (spec["description"] for spec in tools.specs() if spec["name"] == "sandbox_exec")
        reply = tools.call("sandbox_exec", {"command": ["echo", "hi"]})
    assert "300 MB of memory" in said
    assert reply["stdout"] == "hi\n"


def test_the_tools_that_are_functions_use_it_too() -> None:
    assert "42" in run_python_code("print(6 * 7)")


# ---- what stays behind, and the command line


def test_records_say_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with get_sandbox(store_code="always") as sandbox, open_session(store_code="always") as session:
        sandbox.execute("print('one')")
        session.check()
        session.write(f"{session.places.workspace}/two", "2")
    records = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "artifacts" / "executions").glob("*_*.json")]
    assert len(records) == 2
    for record in records:
        assert record["backend"] == "local"
        assert is_stamped(record["result"]["meta"]["fallback"])
    assert main(["history"]) == 0
    assert "local for docker" in capfd.readouterr().out
    assert main(["show", records[0]["execution_id"]]) == 0
    assert f"instead of docker: {NO_DAEMON}" in capfd.readouterr().out


def test_run_writes_one_line_about_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-c", "print(6 * 7)"]) == 0
    out, err = capfd.readouterr()
    assert out == "42\n"
    assert err.startswith(f"fumehood: local stood in for docker (SANDBOX_FALLBACK): {NO_DAEMON}")
    assert err.count("\n") == 1


def test_doctor_shows_what_would_run(capfd: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    page = capfd.readouterr().out
    assert f"Backend docker cannot be had: {NO_DAEMON}" in page
    assert "Backend local (SANDBOX_FALLBACK) gives level" in page
    main(["doctor", "--json"])
    assert is_stamped(json.loads(capfd.readouterr().out)["fallback"])


def test_a_fallback_that_cannot_be_is_bad_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_FALLBACK", "locla")
    assert main(["run", "-c", "1"]) == 78


# ---- the way back


class SlowToFail:
    """An engine that takes every connection and hangs up a while later."""

    def __init__(self) -> None:
        self.asked = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._server:
            while True:
                try:
                    connection, _ = self._server.accept()
                except OSError:
                    return
                with connection:
                    self.asked += 1
                    time.sleep(0.1)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join(HANG_S)


@pytest.fixture
def slow() -> Iterator[SlowToFail]:
    engine = SlowToFail()
    yield engine
    engine.close()


def test_a_backend_that_is_slow_to_fail_is_not_asked_by_every_call(
    slow: SlowToFail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "_PATIENCE", 100_000)  # however long these calls take
    monkeypatch.setattr(fallback, "_MOST_S", 3600.0)
    with get_sandbox(docker_host=slow.address) as sandbox, open_session(docker_host=slow.address) as session:
        for _ in range(5):
            assert sandbox.execute("1").meta["fallback"]["to"] == "local"
        assert session.run("1").meta["fallback"] == sandbox.check().fallback
        with get_sandbox(docker_host=slow.address, timeout_sec=7) as another:  # it is the same engine
            another.execute("1")
        assert slow.asked == 1


def test_it_is_asked_again_in_time(slow: SlowToFail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_PATIENCE", 0)
    with get_sandbox(docker_host=slow.address) as sandbox:
        for _ in range(2):
            assert sandbox.execute("1").meta["fallback"]["to"] == "local"
    assert slow.asked == 2


def test_when_docker_is_back_it_is_used_again(
    dead_daemon: str, docker_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "_PATIENCE", 0)
    path = Path(dead_daemon.removeprefix("unix://"))
    with get_sandbox(warm_cells=0) as sandbox, open_session(warm_cells=0) as session:
        assert sandbox.execute("1").meta["runtime"] == "local"
        assert session.run("x = 1").meta["runtime"] == "local"
        path.symlink_to(docker_host.removeprefix("unix://"))
        try:
            result = sandbox.execute("print(1)")
            assert result.meta["runtime"] == "docker"
            assert "fallback" not in result.meta
            assert sandbox.check().fallback is None
            assert session.run("x").meta["runtime"] == "local"  # it keeps what it has
            with open_session(warm_cells=0) as another:
                assert another.run("1").meta["runtime"] == "docker"
            sandbox.close()
        finally:
            path.unlink()


def test_a_missing_image_is_one_reason(docker: str) -> None:
    with get_sandbox(docker_host=docker, docker_image="no-such-image:latest") as sandbox:
        assert "fumehood image build" in sandbox.execute("1").meta["fallback"]["reason"]


def test_a_runtime_that_the_engine_does_not_know_is_a_wrong_setting(docker: str) -> None:
    with get_sandbox(docker_host=docker, docker_runtime="no-such-runtime", warm_cells=0) as sandbox:
        with pytest.raises(ConfigurationError, match="DOCKER_RUNTIME"):
            sandbox.execute("1")
