"""What of the host is shown: enough to run Python with its packages, and nothing of the user's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fumehood
from fumehood.engine.layout import Layout, _outermost
from support import HANG_S

SRC = str(Path(fumehood.__file__).parents[1])
ASK = (
    "import json, sys; from fumehood.engine.layout import discover; "
    "print(json.dumps(discover(sys.executable), default=sorted))"
)


def make_venv(path: Path) -> Path:
    """A virtualenv of the interpreter beneath the tests, without what they have installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True, timeout=HANG_S)
    subprocess.run(["chmod", "-R", "a+rX", str(path)], check=True)  # the umask may be that of a private person
    return path


def run(venv: Path, code: str, cwd: Path | str = "/", **env: str) -> str:
    """In a clean environment."""
    done = subprocess.run(
        [str(venv / "bin" / "python"), "-c", code],
        env={"HOME": os.path.expanduser("~"), "PATH": "/usr/bin:/bin", "PYTHONPATH": SRC, **env},
        cwd=cwd,
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def layout_of(venv: Path, cwd: Path | str = "/", **env: str) -> Layout:
    fields = json.loads(run(venv, ASK, cwd, **env))
    layout = Layout(*fields)
    return layout._replace(files=frozenset(layout.files), links=tuple((path, to) for path, to in layout.links))


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("venvs") / "plain")


@pytest.fixture(scope="module")
def home_venv() -> Iterator[Path]:
    home = os.path.expanduser("~")
    if not os.access(home, os.W_OK):
        pytest.skip(f"nothing can be made in {home}")
    directory = Path(tempfile.mkdtemp(prefix="test-of-fumehood-", dir=home))
    yield make_venv(directory / "project" / ".venv")
    shutil.rmtree(directory)


def inside(path: str, tree: str) -> bool:
    return path == tree or path.startswith(tree.rstrip("/") + "/")


def is_shown(layout: Layout, path: str) -> bool:
    return any(inside(path, tree) for tree in layout.trees)


def is_reachable(layout: Layout, path: str, hops: int = 10) -> bool:
    """By what is shown alone: trees, and links that lead to them."""
    if not hops:
        return False
    if is_shown(layout, path):
        real = os.path.realpath(path)
        return is_shown(layout, real) or is_reachable(layout, real, hops - 1)
    for link, target in layout.links:
        if inside(path, link):
            there = os.path.normpath(os.path.join(os.path.dirname(link), target)) + path.removeprefix(link)
            return is_reachable(layout, there, hops - 1)
    return False


def check_sound(layout: Layout) -> None:
    for tree in layout.trees:
        assert os.path.isabs(tree)
        assert os.path.exists(tree)
        assert not os.path.islink(tree), "a tree is never a link: links are said to be links"
        assert not [other for other in layout.trees if other != tree and inside(tree, other)], "one inside another"
    for link, target in layout.links:
        assert os.readlink(link) == target
        assert not is_shown(layout, link), "a link within a tree is there already"
    assert layout.files == {tree for tree in layout.trees if not os.path.isdir(tree)}
    assert is_reachable(layout, layout.executable)
    assert is_reachable(layout, os.path.realpath(layout.executable))
    assert is_reachable(layout, os.__file__), "the standard library"


def test_a_plain_virtualenv_is_sound(venv: Path) -> None:
    layout = layout_of(venv)
    check_sound(layout)
    assert layout.is_virtual
    assert layout.executable == str(venv / "bin" / "python")


def test_a_virtualenv_in_the_home_directory_is_sound_and_home_is_not_shown(home_venv: Path) -> None:
    layout = layout_of(home_venv)
    check_sound(layout)
    home = os.path.expanduser("~")
    assert not is_shown(layout, home)
    assert not is_shown(layout, f"{home}/.bashrc")
    assert not is_shown(layout, f"{home}/.ssh")


def test_of_a_virtualenv_only_the_parts_that_python_needs_are_shown(venv: Path) -> None:
    (venv / "notes.txt").write_text("secret")
    (venv / ".env").write_text("TOKEN=secret")
    (venv / "src" / "project").mkdir(parents=True)
    layout = layout_of(venv)
    shown = {os.path.relpath(tree, venv) for tree in layout.trees if inside(tree, str(venv))}
    assert shown <= {"bin", "lib", "lib64", "include", "share", "pyvenv.cfg"}
    assert {"bin", "lib", "pyvenv.cfg"} <= shown
    for hidden in ("notes.txt", ".env", "src/project", "."):
        assert not is_shown(layout, str(venv / hidden).removesuffix("/."))


def test_the_file_that_makes_a_virtualenv_is_a_file(venv: Path) -> None:
    assert str(venv / "pyvenv.cfg") in layout_of(venv).files


def test_a_project_that_is_its_own_virtualenv_keeps_its_files(tmp_path: Path) -> None:
    project = make_venv(tmp_path / "project")
    (project / "main.py").write_text("password = 'secret'")
    (project / ".git").mkdir()
    layout = layout_of(project, cwd=project)
    check_sound(layout)
    assert not is_shown(layout, str(project / "main.py"))
    assert not is_shown(layout, str(project / ".git"))
    assert is_shown(layout, str(project / "lib"))


def test_a_virtualenv_reached_by_a_link_is_sound(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(venv)
    layout = layout_of(tmp_path / "current")
    check_sound(layout)
    assert layout.executable == str(tmp_path / "current" / "bin" / "python")


def test_the_source_of_an_editable_install_is_not_shown(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    source = tmp_path / "checkout" / "src"
    source.mkdir(parents=True)
    (source / "own_module.py").write_text("x = 1")
    (site_packages,) = (venv / "lib").glob("python3*/site-packages")
    (site_packages / "__editable__.own.pth").write_text(f"{source}\n")
    assert run(venv, "import own_module; print(own_module.x)") == "1\n"
    layout = layout_of(venv)
    assert not is_shown(layout, str(source))
    assert not is_shown(layout, str(source / "own_module.py"))


def test_where_python_was_started_is_not_shown(venv: Path, tmp_path: Path) -> None:
    layout = layout_of(venv, cwd=tmp_path, PYTHONPATH=f"{SRC}:{tmp_path}")
    assert not is_shown(layout, str(tmp_path))


def test_packages_that_the_user_installed_for_themselves_are_shown(tmp_path: Path) -> None:
    base = Path(os.path.realpath(sys.executable))
    tag = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / "base" / "lib" / tag / "site-packages"
    packages.mkdir(parents=True)
    done = subprocess.run(
        [str(base), "-c", ASK],
        env={"HOME": str(tmp_path), "PYTHONUSERBASE": str(tmp_path / "base"), "PYTHONPATH": SRC, "PATH": "/usr/bin"},
        cwd="/",
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    layout = Layout(*json.loads(done.stdout))
    assert list(layout.user_packages) == [str(packages)]
    assert str(packages) in layout.trees
    assert not is_shown(layout, str(tmp_path / "base"))


def test_a_virtualenv_without_user_packages_has_none(venv: Path) -> None:
    assert list(layout_of(venv).user_packages) == []


def test_of_the_machines_secrets_nothing_is_shown(venv: Path) -> None:
    layout = layout_of(venv)
    for path in (
        "/etc/shadow",
        "/etc/passwd",
        "/etc/ssl/private",
        "/var",
        "/run",
        "/root",
        "/home",
        "/sys",
        "/proc",
        "/",
    ):
        assert not is_shown(layout, path), path
    assert list(layout.devices) == ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]


def test_a_working_directory_that_is_gone_is_no_obstacle(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    code = f"import os; os.rmdir({str(tmp_path / 'gone')!r}); {ASK}"
    assert json.loads(run(venv, code, cwd=tmp_path / "gone"))[0] == str(venv / "bin" / "python")


def test_the_outermost_of_nested_paths_are_kept() -> None:
    assert _outermost(["/a/b", "/a", "/ab", "/c/d/e", "/c/d", "/a"]) == ("/a", "/ab", "/c/d")


# ---- to the end: a program in a sandbox of that interpreter

IMPORT = """
import json
from fumehood import get_sandbox
from fumehood.errors import IsolationUnavailable
try:
    with get_sandbox(isolation="sealed", store_code="never") as sandbox:
        code = "import dropped, sys; print(dropped.answer, dropped.__file__, sys.executable, sys.prefix)"
        one = sandbox.execute(code, timeout=280)
        two = sandbox.execute(
            "import subprocess; print(subprocess.run(['python', '-c', 'import dropped; print(dropped.answer)'],"
            " capture_output=True, text=True))", timeout=280)
        print(json.dumps([one.stdout, one.stderr, two.stdout + two.stderr]))
except IsolationUnavailable as missing:
    print(json.dumps(str(missing)))
"""


def check_imports(venv: Path, cwd: Path) -> None:
    (site_packages,) = (venv / "lib").glob("python3*/site-packages")
    (site_packages / "dropped.py").write_text("answer = 42\n")
    (site_packages / "dropped.py").chmod(0o644)
    found = json.loads(run(venv, IMPORT, cwd=cwd))
    if isinstance(found, str):
        pytest.skip(f"no sealed sandbox on this machine: {found}")
    stdout, stderr, child = found
    assert stdout.split() == ["42", str(site_packages / "dropped.py"), str(venv / "bin" / "python"), str(venv)], stderr
    assert "stdout='42\\n'" in child, "a child interpreter finds the same packages"


def test_packages_of_a_virtualenv_beneath_tmp_can_be_imported_inside(tmp_path: Path) -> None:
    directory = Path(tempfile.mkdtemp(prefix="test-of-fumehood-", dir="/tmp"))
    try:
        check_imports(make_venv(directory), tmp_path)
    finally:
        shutil.rmtree(directory)


def test_packages_of_a_virtualenv_in_the_home_directory_can_be_imported_inside(home_venv: Path, tmp_path: Path) -> None:
    check_imports(home_venv, tmp_path)


def test_packages_of_a_virtualenv_beneath_var_tmp_can_be_imported_inside(tmp_path: Path) -> None:
    directory = Path(tempfile.mkdtemp(prefix="test-of-fumehood-", dir="/var/tmp"))
    try:
        check_imports(make_venv(directory / "venv"), tmp_path)
    finally:
        shutil.rmtree(directory)
