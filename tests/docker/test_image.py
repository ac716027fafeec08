"""`fumehood image`: the runner image is built by the engine, from whatever is installed."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_api import ask

import fumehood
from fumehood import BackendUnavailable, BadArgument, get_sandbox
from fumehood.backends.docker import image
from fumehood.cli.image import Progress
from fumehood.cli.main import main
from fumehood.errors import EngineFailed
from fumehood.guest import wire
from support import HANG_S

ROOT = Path(__file__).parents[2]
BASE = "fumehood-base:bookworm"


@pytest.fixture
def tag(docker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A name for an image, which is removed. The image itself may have others: another run built the same.

    One test at a time: with an image the engine removes the layers that another build has just found.
    """
    name = f"fumehood-test-{os.getpid()}:{os.urandom(4).hex()}"
    with open(tmp_path_factory.getbasetemp().parent / "images.lock", "w") as lock:  # of all workers
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield name
        if ask(docker, "GET", f'/images/json?filters={{"reference":["{name}"]}}'):
            ask(docker, "DELETE", f"/images/{name}?force=1")


@pytest.fixture
def without_libraries(docker: str, tmp_path: Path) -> tuple[str, ...]:
    """The options of a build that takes seconds: no libraries, and of the wheels pip's own."""
    ask(docker, "GET", f"/images/{BASE}/json")
    cache = Path(docker.removeprefix("unix://")).parents[1] / "cache"
    house = tmp_path / "wheels"
    house.mkdir()
    shutil.copy(next(cache.glob("wheels-*/pip-*.whl")), house)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("# none\n")
    return "--base", BASE, "--wheelhouse", str(house), "--requirements", str(requirements)


Captured = pytest.CaptureFixture[str]


def test_an_image_is_built_and_programs_run_in_it(
    tag: str, without_libraries: tuple[str, ...], capfd: Captured
) -> None:
    assert main(["image", "--tag", tag]) == 1
    assert re.search("is not there\n.*fumehood image build", capfd.readouterr().out)

    assert main(["image", "build", "--tag", tag, *without_libraries]) == 0
    out, err = capfd.readouterr()
    assert re.fullmatch(rf"built {tag}: \d+ MB in \d+ s, [0-9a-f]{{12}}\n", out)
    steps = re.findall(r"^step (\d+)/(\d+): \S", err, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, int(steps[0][1]) + 1))
    assert "\x1b" not in err

    assert main(["image", "--tag", tag, "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["fits"] is True
    assert (said["version"], said["protocol"]) == (fumehood.__version__, str(wire.PROTOCOL))
    assert said["is_current"] is False  # it has not our libraries
    with get_sandbox(type="docker", docker_image=tag, warm_cells=0) as sandbox:
        assert sandbox.execute("print(6 * 7)").stdout == "42\n"

    before = said["id"]
    assert main(["image", "build", "--tag", tag, *without_libraries, "--build-arg", "A=1"]) == 0
    assert main(["image", "--tag", tag, "--json"]) == 0
    assert json.loads(capfd.readouterr().out.partition("\n")[2])["id"] == before  # all of it was there


def test_an_image_of_another_protocol_says_what_to_do(
    tag: str, without_libraries: tuple[str, ...], capfd: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "fumehood"
    shutil.copytree(image._PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    with open(package / "guest" / "wire.py", "a", encoding="utf-8") as file:
        file.write("\nPROTOCOL = 0\n")
    own_files = image._own_files(None)
    monkeypatch.setattr(image, "_own_files", lambda given: _from(package, own_files, given))
    assert main(["image", "build", "--tag", tag, *without_libraries]) == 0
    another = r"of another version of fumehood: .*`fumehood image build`"
    with get_sandbox(type="docker", docker_image=tag, warm_cells=0) as sandbox:
        with pytest.raises(BackendUnavailable, match=another):
            sandbox.execute("1")

    monkeypatch.setattr(wire, "PROTOCOL", 99)
    capfd.readouterr()
    assert main(["image", "--tag", tag]) == 1
    out = capfd.readouterr().out
    assert "does not fit" in out
    assert "this one's is 99" in out
    assert "fumehood image build" in out


def _from(package: Path, files: list[tuple[str, Path]], requirements: Path | None) -> list[tuple[str, Path]]:
    moved = {name: package / name.removeprefix("src/fumehood/") for name, _ in files if name.startswith("src/")}
    moved["docker/requirements.txt"] = requirements or ROOT / "docker/requirements.txt"
    return [(name, moved.get(name, path)) for name, path in files]


@pytest.mark.usefixtures("docker")
def test_the_image_of_the_tests_is_told(capfd: Captured) -> None:
    main(["image"])
    out = capfd.readouterr().out
    assert re.search(
        r"antigravity-sandbox:latest is there\n  id: +[0-9a-f]{12}\n  size: +\d+ MB\n  age: +\d+ \w+\n", out
    )


# ---- what goes wrong


def failed(capfd: Captured, *words: str) -> tuple[int, str]:
    code = main(["image", "build", *words])
    return code, capfd.readouterr().err


@pytest.mark.usefixtures("docker")
def test_an_image_that_is_missing_is_built_under_the_name_that_was_asked_for(capfd: Captured) -> None:
    assert main(["image", "--tag", "no-such-image:1"]) == 1
    assert "fumehood image build --tag no-such-image:1" in capfd.readouterr().out


def test_a_step_that_fails_is_shown_with_its_last_lines(
    tag: str, without_libraries: tuple[str, ...], capfd: Captured, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("no-such-package==1\n")
    code, said = failed(capfd, "--tag", tag, *without_libraries)
    assert code == 125
    assert re.search(r"step 5 of \d+ \(RUN set -e; .*…\) failed: returned a non-zero code: 1\. ", said)
    assert "\x1b" not in said
    assert "with --wheelhouse" in said
    assert "No matching distribution found for no-such-package==1" in said


def test_a_base_that_cannot_be_had_names_the_option(
    tag: str, without_libraries: tuple[str, ...], capfd: Captured
) -> None:
    code, said = failed(capfd, "--tag", tag, *without_libraries, "--base", "localhost/no-such-base:1")
    assert code == 125
    assert "the base image localhost/no-such-base:1 cannot be had" in said
    assert "with --base" in said


def test_no_daemon(capfd: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert failed(capfd)[0] == 125
    assert main(["image"]) == 125
    assert "Docker daemon not available" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--tag", "Upper"], "cannot be the name of an image"),
        (["--tag", "a:b:c"], "cannot be the name of an image"),
        (["--tag", "name@sha256:00"], "cannot be the name of an image"),
        (["--build-arg", "alone"], "NAME=VALUE"),
        (["--wheelhouse", "."], "there are no wheels"),
        (["--wheelhouse", "nowhere"], "there are no wheels"),
        (["--requirements", "nowhere"], "there is no file"),
        (["--no-such-option"], "unrecognized"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_asked(words: list[str], named: str, capfd: Captured) -> None:
    code, said = failed(capfd, *words)
    assert code == 2
    assert named in said


@pytest.mark.parametrize("name", ["a", "a/b", "host:5000/a/b_c:v1.2-x", "docker.io/library/a--b:latest", "localhost/a"])
def test_names_that_an_image_may_have(name: str) -> None:
    image._check(image.Options(name))


def test_a_full_disk_is_told_wherever_it_shows() -> None:
    listener = image._Listener(lambda _: None)
    listener.hear({"stream": "Step 5/18 : RUN pip install\n"})
    listener.hear({"stream": "OSError: [Errno 28] No space left on device\n"})
    error = image._failure("The command returned a non-zero code: 1", listener, {})
    assert isinstance(error, EngineFailed)
    assert "docker system prune" in str(error)
    assert "docker system prune" in str(image._failure("write /x: no space left on device", listener, {}))


def test_what_the_engine_says_comes_in_pieces() -> None:
    heard: list[Any] = []
    listener = image._Listener(heard.append)
    for piece in ("Step 1/2 : FROM x", "\n ---> 123\n", "Step 2/2 : RUN   a\n", "one\ntw", "o\n"):
        listener.hear({"stream": piece})
    listener.hear({"status": "Downloading", "id": "abc", "progress": "1/2"})
    assert heard == [(1, 2, "FROM x"), (2, 2, "RUN a"), "one", "two", "abc Downloading 1/2"]


def test_a_file_that_shrinks_while_it_is_sent_is_an_error(tmp_path: Path) -> None:
    import asyncio

    file = tmp_path / "file"
    file.write_bytes(b"x" * (image._CHUNK + 1))

    async def send() -> None:
        parts = image._tar([("file", file)])
        await anext(parts)
        await anext(parts)
        os.truncate(file, 0)
        await anext(parts)

    with pytest.raises(EngineFailed, match="became shorter"):
        asyncio.run(send())


def test_at_a_terminal_one_line_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    progress = Progress()
    progress.hear(image.Step(1, 2, "RUN x"))
    progress.hear("half\x1b[2J")
    progress.tick()
    progress.end()
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "\n" not in shown
    assert shown.endswith("half\\x1b[2J\r\x1b[K")
    assert "step 1/2: RUN x" in shown


# ---- what it is made of


def test_the_dockerfile_says_which_version_and_protocol_it_is_of() -> None:
    labels = dict(re.findall(r"(io\.fumehood\.\w+)=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8")))
    assert labels == {image.VERSION: fumehood.__version__, image.PROTOCOL: str(wire.PROTOCOL)}


def test_everything_that_the_guest_imports_is_sent() -> None:
    names = {name for name, _ in image.context(image.Options("x"))}
    guest = {f"src/fumehood/guest/{path.name}" for path in (ROOT / "src/fumehood/guest").glob("*.py")}
    assert {"Dockerfile", "docker/requirements.txt", "src/fumehood/__init__.py", *guest} < names


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    pytest.importorskip("hatchling", reason="needs hatchling, which builds the distributions")
    place = tmp_path_factory.mktemp("dist")

    def build(kind: str) -> Path:
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(place)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=HANG_S)
        return next(place.glob("*.whl" if kind == "wheel" else "*.tar.gz"))

    return build


def test_the_wheel_has_all_that_the_image_is_built_of(built: Callable[[str], Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(built("wheel")) as wheel:
        wheel.extractall(tmp_path)
    code = "from fumehood.backends.docker import image; print(image.__file__, image.sources())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, encoding="utf-8", timeout=HANG_S)
    where, sources = done.stdout.split()
    assert where.startswith(str(tmp_path))
    assert sources == image.sources()


def test_the_source_distribution_has_the_dockerfile(built: Callable[[str], Path]) -> None:
    with tarfile.open(built("sdist")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"Dockerfile", ".dockerignore", "docker/requirements.txt", "src/fumehood/guest/wire.py"} <= names


def test_bad_options_are_an_error_of_the_caller() -> None:
    with pytest.raises(BadArgument):
        image._check(image.Options("x y"))
