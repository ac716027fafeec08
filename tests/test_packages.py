"""Real pip and a directory of wheels written by hand: nothing here needs an index or a build backend."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

import fumehood
from fumehood import installer, packages
from fumehood.config import Settings, user_directory
from fumehood.errors import BadArgument, PackageError
from fumehood.packages import Layer, ensure
from fumehood.requirements import parse
from support import HANG_S

SOURCE = Path(fumehood.__file__).parent.parent


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """On a busy machine an installation may take longer than a user would wait."""
    monkeypatch.setattr(packages, "INSTALL_TIMEOUT_S", 2 * HANG_S)


def wheel(directory, name, version, requires=(), tag="py3-none-any", files=()):
    info = f"{name}-{version}.dist-info"
    contents = {
        f"{name}.py": f"version = '{version}'\n",
        **dict(files),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {requirement}\n" for requirement in requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / f"{name}-{version}-{tag}.whl", "w") as archive:
        for path, text in {**contents, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


BACKEND = """
import os, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    if {name!r} == "broken":
        raise RuntimeError("it lacks a compiler")
    info, wheel = "{name}-{version}.dist-info/", "{name}-{version}-py3-none-any.whl"
    requires = "".join("Requires-Dist: %s\\n" % one for one in {requires})
    with zipfile.ZipFile(os.path.join(directory, wheel), "w") as archive:
        archive.writestr("{name}.py", "built = True\\n")
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n" + requires)
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "RECORD", "{name}.py,,\\n")
    return wheel
"""


def sdist(directory, name, version, canary=None, requires=()):
    """Its build backend is its own file, needs nothing, and leaves a mark where it runs."""
    backend = f"open({str(canary)!r}, 'w').close()\n" if canary else ""
    contents = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'back'\nbackend-path = ['.']\n",
        "back.py": backend + BACKEND.format(name=name, version=version, requires=list(requires)),
    }
    with tarfile.open(directory / f"{name}-{version}.tar.gz", "w:gz") as archive:
        for path, text in contents.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture
def house(tmp_path):
    directory = tmp_path / "wheel house"
    directory.mkdir()
    wheel(directory, "alpha", "1.0")
    wheel(directory, "alpha", "2.0")
    wheel(directory, "beta_x", "1.0", ["alpha<2"])
    sdist(directory, "onlysource", "1.0")
    sdist(directory, "alpha", "3.0")
    wheel(directory, "elsewhere", "1.0", tag="cp39-cp39-win_amd64")
    wheel(directory, "needs_source", "1.0", ["onlysource"])
    return directory


@pytest.fixture
def settings(house, tmp_path):
    return Settings(wheelhouse=str(house), packages_dir=str(tmp_path / "packages"))


@pytest.fixture
def index(house, tmp_path, monkeypatch):
    """The same files as an index that pip's configuration names; it is used when there is no wheelhouse."""
    root = tmp_path / "index"
    for file in house.iterdir():
        folder = root / file.name.split("-")[0].replace("_", "-")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder)
    for folder in root.iterdir():
        links = "".join(f'<a href="{file.name}">{file.name}</a>\n' for file in folder.iterdir())
        (folder / "index.html").write_text(links, "utf-8")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", root.as_uri())
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return Settings(packages_dir=str(tmp_path / "packages"))


@pytest.fixture
def starts(monkeypatch):
    """Every program that is started, which is started nevertheless."""
    seen = []
    real = subprocess.Popen

    class Counting(real):
        def __init__(self, command, *args, **kwargs):
            seen.append(command)
            super().__init__(command, *args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", Counting)
    return seen


def leftovers(settings):
    return [entry for entry in os.listdir(settings.packages_dir) if not entry.endswith(".lock")]


# --- what is installed ---


def test_a_requirement_and_what_it_needs_are_installed_and_can_be_imported(settings):
    layer = ensure(["beta-x"], settings)
    assert layer.installed == ("alpha==1.0", "beta-x==1.0")
    program = f"import sys; sys.path.insert(0, {layer.path!r}); import alpha, beta_x; print(alpha.version)"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "1.0\n"


def test_the_newest_version_with_a_wheel_is_taken(settings):
    assert ensure(["alpha"], settings).installed == ("alpha==2.0",)


def test_a_marker_that_does_not_hold_installs_nothing(settings):
    assert ensure(["alpha; python_version < '3'"], settings).installed == ()


def test_an_index_of_pips_own_configuration_is_used(index):
    assert ensure(["beta-x>=1"], index).installed == ("alpha==1.0", "beta-x==1.0")


def test_a_host_that_ignores_sigchld_learns_what_was_installed_and_what_was_not(settings, house):
    sdist(house, "made", "1.0")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        built = settings._replace(source_packages=("made",))
        assert ensure(["beta-x", "made"], built).installed == ("alpha==1.0", "beta-x==1.0", "made==1.0")
        with pytest.raises(PackageError, match="gamma is not in the wheelhouse"):
            ensure(["gamma"], settings)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_host_where_nothing_can_be_started_says_what_is_missing(settings, monkeypatch):
    monkeypatch.setattr(os, "devnull", "/nonexistent/null")
    with pytest.raises(PackageError, match=r"cannot be started on this machine: .*No such file.*/nonexistent/null"):
        ensure(["alpha"], settings)


def test_a_wheelhouse_is_all_there_is(settings, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    wheel(other, "gamma", "1.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(other))
    with pytest.raises(PackageError, match="gamma is not in the wheelhouse"):
        ensure(["gamma"], settings)


def test_everybody_may_read_a_layer_and_nobody_else_write_it(settings, house):
    wheel(house, "folder", "1.0", files={"deep/er/data.txt": "x"}.items())
    before = os.umask(0o077)
    try:
        layer = ensure(["folder"], settings)
    finally:
        os.umask(before)
    for path in [Path(layer.path), *Path(layer.path).rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o755 if path.is_dir() else 0o644), path
    assert (Path(layer.path) / "deep/er/data.txt").exists()
    assert not list(Path(layer.path).rglob("*.pyc"))


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not on PATH")
@pytest.mark.parametrize(
    ("requirements", "words"),
    [
        (["nosuch"], "nosuch is not in the wheelhouse"),
        (["onlysource"], "onlysource has no wheel .* only source"),
        (["elsewhere"], "elsewhere has wheels .* none for Python"),
        (["alpha==9"], "fits alpha==9"),
        (["beta-x", "alpha==2.0"], "cannot be installed together: .*alpha<2"),
    ],
)
def test_uv_installs_the_same_and_its_errors_are_told_the_same_way(settings, starts, requirements, words):
    assert ensure(["beta-x"], settings).installed == ("alpha==1.0", "beta-x==1.0")
    assert any("uv" in str(word) for word in starts[0])
    with pytest.raises(PackageError, match=words):
        ensure(requirements, settings)


# --- once per set ---


def test_a_set_that_is_there_starts_no_program_however_it_is_written(settings, starts):
    first = ensure(["Beta.X>=1, <3", "alpha"], settings)
    assert starts
    starts.clear()
    assert ensure(["alpha", "beta_x <3,>=1", "ALPHA"], settings) == first
    assert starts == []


def test_another_set_or_wheelhouse_is_another_layer(settings, house, tmp_path):
    first = ensure(["alpha==1.0"], settings)
    second = ensure(["alpha==2.0"], settings)
    moved = tmp_path / "moved"
    shutil.copytree(house, moved)
    third = ensure(["alpha==1.0"], settings._replace(wheelhouse=str(moved)))
    assert len({first.path, second.path, third.path}) == 3
    assert (first.installed, second.installed) == (("alpha==1.0",), ("alpha==2.0",))


def test_eight_threads_install_once(settings, starts):
    layers = []
    threads = [threading.Thread(target=lambda: layers.append(ensure(["beta-x"], settings))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * HANG_S)
    assert len(layers) == 8
    assert len(set(layers)) == 1
    assert len([command for command in starts if "install" in command]) == 1


def test_processes_install_once(settings):
    program = (
        "import sys; from fumehood.config import Settings; from fumehood.packages import ensure\n"
        "said = []\n"
        "ensure(['beta-x'], Settings(wheelhouse=sys.argv[1], packages_dir=sys.argv[2]), said.append)\n"
        "print(any(text.startswith('installed') for text in said))"
    )
    command = [sys.executable, "-c", program, settings.wheelhouse, settings.packages_dir]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") for _ in range(3)]
    said = [process.communicate(timeout=HANG_S)[0].strip() for process in running]
    assert sorted(said) == ["False", "False", "True"]


def test_a_broken_or_half_made_layer_is_never_used(settings):
    layer = ensure(["alpha==1.0"], settings)
    place = Path(layer.path).parent
    half = place.parent / f".{place.name}.killed"
    (half / "site").mkdir(parents=True)
    for damage in (
        lambda: (place / "layer.json").unlink(),
        lambda: (place / "layer.json").write_text("{", "utf-8"),
        lambda: (place / "layer.json").write_text('{"format": 1, "installed": [7]}', "utf-8"),
        lambda: shutil.rmtree(place / "site"),
    ):
        damage()
        (place / "evil.py").write_text("", "utf-8")
        assert ensure(["alpha==1.0"], settings) == layer
        assert (place / "site" / "alpha.py").exists()
        assert not (place / "evil.py").exists()
    assert leftovers(settings) == [place.name]


def test_a_failed_installation_leaves_nothing_and_the_next_one_is_tried(settings, house):
    with pytest.raises(PackageError, match="later is not in"):
        ensure(["later"], settings)
    assert leftovers(settings) == []
    wheel(house, "later", "1.0")
    assert ensure(["later"], settings).installed == ("later==1.0",)


def test_progress_tells_of_the_start_and_the_end_and_nothing_for_what_is_there(settings):
    said = []
    ensure(["alpha==1.0"], settings, said.append)
    assert said[0] == "installing alpha==1.0"
    assert said[-1].startswith("installed alpha==1.0: ")
    said.clear()
    ensure(["alpha==1.0"], settings, said.append)
    assert said == []


def test_what_a_package_calls_itself_cannot_drive_a_terminal(settings, monkeypatch):
    """pip takes such a name or not, by its version: what it would have left is put there."""
    name = "evil\x1b]0;title\x07\x9b2J-1.0.dist-info"
    monkeypatch.setattr(installer, "install", lambda _wanted, work, *_: os.mkdir(os.path.join(work.site, name)))
    said = []
    layer = ensure(["evil"], settings, said.append)
    assert os.listdir(layer.path) == [name]
    assert layer.installed == ("evil\\x1b]0;title\\x07\\x9b2J==1.0",)
    assert all(line.isprintable() for line in said)
    assert ensure(["evil"], settings) == layer


def test_progress_tells_how_long_it_takes(settings, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)  # uv is too quick
    monkeypatch.setattr(packages, "PROGRESS_EVERY_S", 0.05)
    said = []
    ensure(["alpha==1.0"], settings, said.append)
    assert any(re.fullmatch(r"installing alpha==1\.0: \d+ s", text) for text in said), said


# --- what is refused ---


NOT_PLAIN = [
    "-r requirements.txt",
    "--index-url=http://127.0.0.1/",
    "-e .",
    "https://127.0.0.1/x.whl",
    "x @ file:///tmp/x.whl",
    "x@https://127.0.0.1/x.tar.gz",
    "git+https://127.0.0.1/x.git",
    "./x",
    "../x",
    "/tmp/x",
    "x/y",
    "x.whl",
    "x.tar.gz",
    "x.ZIP",
    ".",
    "",
    "   ",
    "alpha\n--index-url x",
    "alpha\r",
    "alpha\0",
    "alpha --hash=sha256:00",
    "alpha beta",
    "alpha==",
    "alpha==1.0 --no-binary :all:",
    "alpha; os.system('x')",
    "alpha; python_version > '3\n'",
    "alpha;",
    "alpha; python_version",
    "alpha; and",
    "alpha; (os_name == 'posix'",
    "alpha; os_name == 'posix' 'nt'",
    "alpha; os_name not 'posix'",
    "alpha; colour == 'red'",
    "alpha[x",
    "alpha (>=1",
    "älpha",
    "a" * 501,
    "$HOME",
    "${X}",
    None,
    7,
    b"alpha",
    ["alpha"],
]


def test_what_is_not_a_plain_requirement_is_refused_by_name_with_what_is_accepted(settings, starts):
    for entry in NOT_PLAIN:
        try:
            ensure([entry], settings)
            said = "it was taken"
        except PackageError as error:
            said = str(error)
        assert "accepted is a name with extras, versions and markers" in said, repr(entry)
        assert said.isprintable()
        assert len(said) < 400
        if isinstance(entry, str):
            assert repr(entry)[:20] in said
    assert starts == []


@pytest.mark.parametrize(
    ("entry", "written"),
    [
        ("Six", "six"),
        ("ruamel.yaml", "ruamel-yaml"),
        ("polars[XLSX, pandas] >= 1.0 , <2", "polars[pandas,xlsx]<2,>=1.0"),
        ("six (>=1.0)", "six>=1.0"),
        ("x==1.*", "x==1.*"),
        ("x===1.0+local", "x===1.0+local"),
        ("x~=1.4.2,!=1.5", "x!=1.5,~=1.4.2"),
        (
            "x;python_version>'3.8'and (os_name=='posix' or extra == \"a\")",
            "x; python_version > '3.8' and ( os_name == 'posix' or extra == \"a\" )",
        ),
        ("x; sys_platform not in 'win32 darwin'", "x; sys_platform not in 'win32 darwin'"),
    ],
)
def test_plain_requirements_are_written_in_one_way(entry, written):
    assert [str(requirement) for requirement in parse([entry])] == [written]


@pytest.mark.parametrize("requirements", ["alpha", b"alpha", None, 7, {"alpha": 1}, []])
def test_requirements_that_are_no_list_are_a_bad_argument(settings, requirements):
    with pytest.raises(BadArgument, match="requirements"):
        ensure(requirements, settings)


def test_only_what_is_on_the_list_may_be_named_and_dependencies_come_along(settings, starts):
    strict = settings._replace(allowed_packages=("Beta_X",))
    with pytest.raises(
        PackageError, match=r"alpha may not be installed: allowed are beta-x\..*SANDBOX_ALLOWED_PACKAGES"
    ):
        ensure(["beta-x", "Alpha>=1"], strict)
    with pytest.raises(PackageError, match="no package is allowed"):
        ensure(["alpha"], settings._replace(allowed_packages=()))
    assert starts == []
    assert ensure(["beta.x"], strict).installed == ("alpha==1.0", "beta-x==1.0")


def test_a_layer_that_is_there_is_still_refused_to_those_who_may_not_name_it(settings):
    ensure(["alpha"], settings)
    with pytest.raises(PackageError, match="may not be installed"):
        ensure(["alpha"], settings._replace(allowed_packages=("beta-x",)))


@pytest.mark.parametrize("source", ["wheelhouse", "index"])
@pytest.mark.parametrize(
    ("requirements", "words"),
    [
        (["nosuch"], "nosuch is not .*spelled"),
        (["onlysource"], "onlysource has no wheel for Python 3.* only source, which is not built.*SANDBOX_WHEELHOUSE"),
        (["needs-source"], "onlysource has no wheel"),
        (["elsewhere"], "elsewhere has wheels .* but none for Python 3"),
        (["alpha==9"], r"fits alpha==9\. There are: 1\.0, 2\.0"),
        (["alpha==3.0"], r"has a wheel and fits alpha==3\.0\. There are: 1\.0, 2\.0"),
        (["alpha==1.0", "alpha==2.0"], "cannot be installed together: .*alpha==1.0; .*alpha==2.0.*Loosen or drop"),
        (["beta-x", "alpha==2.0"], "cannot be installed together: .*beta-x 1.0 depends on alpha<2"),
    ],
)
def test_each_failure_says_what_happened_and_what_to_do(request, source, requirements, words, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)  # uv has a test of its own
    settings = request.getfixturevalue("settings" if source == "wheelhouse" else "index")
    with pytest.raises(PackageError, match=words):
        ensure(requirements, settings)


def test_no_code_of_a_package_runs_here_even_if_a_dependency_has_an_address(settings, house, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    canary = tmp_path / "canary"
    sdist(tmp_path, "evil", "1.0", canary)
    wheel(house, "direct", "1.0", [f"evil @ {(tmp_path / 'evil-1.0.tar.gz').as_uri()}"])
    with pytest.raises(PackageError, match=r"from an address of its own choice.*refused"):
        ensure(["direct"], settings)
    assert not canary.exists()
    # The same package does run its code where nothing forbids it: the canary is a live one.
    bare = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(house), "--only-binary", ":all:"]
    subprocess.run([*bare, "--target", str(tmp_path / "bare"), "direct"], capture_output=True, check=False, cwd="/")
    assert canary.exists()


# --- what is built, because the user said so


@pytest.mark.parametrize("source", ["wheelhouse", "index"])
def test_a_package_that_was_named_is_built_and_what_it_needs_is_not(request, source, house, tmp_path):
    sdist(house, "made", "1.0", tmp_path / "made ran", ["alpha<2"])
    settings = request.getfixturevalue("settings" if source == "wheelhouse" else "index")
    with pytest.raises(PackageError, match=r"made has no wheel .*SANDBOX_SOURCE_PACKAGES"):
        ensure(["made"], settings)
    assert not (tmp_path / "made ran").exists()
    layer = ensure(["made"], settings._replace(source_packages=("Made",)))
    assert layer.installed == ("alpha==1.0", "made==1.0")
    assert (tmp_path / "made ran").exists()
    assert (Path(layer.path) / "made.py").read_text("utf-8") == "built = True\n"
    with pytest.raises(PackageError, match="made has no wheel"):  # the layer was kept for who may build it
        ensure(["made"], settings)


def test_to_build_one_package_is_not_to_build_another(settings, house, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for name in ("evil", "other"):
        sdist(tmp_path if name == "evil" else house, name, "1.0", tmp_path / f"{name} ran")
    wheel(house, "direct", "1.0", [f"evil @ {(tmp_path / 'evil-1.0.tar.gz').as_uri()}"])
    sdist(house, "made", "1.0", tmp_path / "made ran", ["other"])
    trusting = settings._replace(source_packages=("made", "onlysource"))
    with pytest.raises(PackageError, match=r"from an address of its own choice.*refused"):
        ensure(["onlysource", "direct"], trusting)
    with pytest.raises(PackageError, match=r"other has no wheel .* list it in SANDBOX_SOURCE_PACKAGES"):
        ensure(["made"], trusting)
    with pytest.raises(PackageError, match=r"onlysource has no wheel .* and in requirements"):
        ensure(["needs-source"], trusting)
    assert ensure(["needs-source", "onlysource"], trusting).installed == ("needs-source==1.0", "onlysource==1.0")
    assert (tmp_path / "made ran").exists()
    assert not (tmp_path / "evil ran").exists()
    assert not (tmp_path / "other ran").exists()


def test_what_a_build_says_cannot_drive_a_terminal(settings, house, monkeypatch):
    evil = BACKEND.replace("it lacks a compiler", "\\x1b[2Jit lacks\\x07 a \\u202ecompiler")
    monkeypatch.setitem(globals(), "BACKEND", evil)
    sdist(house, "broken", "1.0")
    with pytest.raises(PackageError, match="it lacks") as caught:
        ensure(["broken"], settings._replace(source_packages=("broken",)))
    assert str(caught.value).isprintable()


def test_a_build_that_fails_says_what_to_do(settings, house):
    sdist(house, "broken", "1.0")
    with pytest.raises(PackageError, match=r"broken could not be built from source: .*SANDBOX_WHEELHOUSE.*compiler"):
        ensure(["broken"], settings._replace(source_packages=("broken",)))
    assert leftovers(settings) == []


def test_a_dependency_with_an_address_is_refused_though_it_is_a_wheel(settings, house, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    wheel(other, "gift", "1.0")
    wheel(house, "direct", "1.0", [f"gift @ {(other / 'gift-1.0-py3-none-any.whl').as_uri()}"])
    with pytest.raises(PackageError, match="from an address of its own choice"):
        ensure(["direct"], settings)


def test_an_index_out_of_reach_is_said_and_its_password_is_not(index, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setenv("PIP_INDEX_URL", "http://someone:hunter2secret@127.0.0.1:1/simple")
    with pytest.raises(PackageError, match=r"the package index cannot be reached.*SANDBOX_WHEELHOUSE") as caught:
        ensure(["alpha"], index)
    assert "hunter2secret" not in str(caught.value)


def test_an_installation_that_takes_too_long_is_ended(settings, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(packages, "INSTALL_TIMEOUT_S", 0.01)
    with pytest.raises(PackageError, match="took too long and was ended"):
        ensure(["alpha"], settings)
    assert leftovers(settings) == []


def test_a_wheelhouse_that_is_not_there_is_said(settings):
    with pytest.raises(PackageError, match=r"/none is not a directory.*SANDBOX_WHEELHOUSE"):
        ensure(["alpha"], settings._replace(wheelhouse="/none"))


def test_a_directory_that_cannot_be_written_is_said(settings, tmp_path):
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(PackageError, match=r"packages cannot be kept in .*SANDBOX_PACKAGES_DIR"):
        ensure(["alpha"], settings._replace(packages_dir=str(tmp_path / "file" / "x")))


def test_a_directory_that_others_can_write_is_refused(settings, tmp_path):
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(PackageError, match="others can write to"):
        ensure(["alpha"], settings._replace(packages_dir=str(directory)))


def test_a_full_disk_is_said(house, tmp_path):
    wheel(house, "large", "1.0", files={"large.bin": os.urandom(200_000).hex()}.items())
    place = tmp_path / "small"
    place.mkdir()
    program = (
        "import sys; from fumehood.config import Settings; from fumehood.packages import ensure\n"
        "from fumehood.errors import PackageError\n"
        "try: ensure(['large'], Settings(wheelhouse=sys.argv[1], packages_dir=sys.argv[2]))\n"
        "except PackageError as error: print(error)"
    )
    script = 'mount -t tmpfs -o size=128k none "$1" || exit 77; shift; exec "$@"'
    inner = [sys.executable, "-c", program, str(house), f"{place}/packages"]
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "-", str(place), *inner]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=HANG_S)
    if done.returncode in (1, 77) and "unshare" in done.stderr + "mount" * (done.returncode == 77):
        pytest.skip(f"no small disk can be made here: {done.stderr.strip()}")
    assert "the disk" in done.stdout, done.stderr
    assert "is full" in done.stdout
    assert "SANDBOX_PACKAGES_DIR" in done.stdout


def test_neither_pip_nor_uv_is_said_with_the_command_to_type(settings, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    program = (
        "import sys; from fumehood.config import Settings; from fumehood.packages import ensure\n"
        "from fumehood.errors import PackageError\n"
        "try: ensure(['alpha'], Settings(wheelhouse=sys.argv[1], packages_dir=sys.argv[2]))\n"
        "except PackageError as error: print(error)"
    )
    command = [tmp_path / "bare/bin/python", "-c", program, settings.wheelhouse, settings.packages_dir]
    environ = {"PATH": "/nonexistent", "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=environ, capture_output=True, encoding="utf-8", check=True)
    assert "need pip or uv, and there is neither" in done.stdout
    assert "-m ensurepip" in done.stdout


# --- where ---


def test_layers_are_kept_in_the_users_cache_and_for_root_where_programs_can_reach(monkeypatch, tmp_path):
    assert user_directory("XDG_CACHE_HOME", ".cache", {"XDG_CACHE_HOME": "/c"}) == "/c/fumehood"
    assert user_directory("XDG_CACHE_HOME", ".cache", {"XDG_CACHE_HOME": "c", "HOME": "/h"}) == "/h/.cache/fumehood"
    assert user_directory("XDG_CACHE_HOME", ".cache", {}) is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert packages._root(Settings()) == f"{tmp_path}/fumehood/packages"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert packages._root(Settings()) == "/var/cache/fumehood/packages"
    assert packages._root(Settings(packages_dir="rel")) == os.path.abspath("rel")


def test_uv_gives_way_to_pip_where_pips_configuration_names_an_index(index, monkeypatch, tmp_path, starts):
    fake = tmp_path / "uv"
    fake.write_text("#!/bin/sh\nexit 9\n", "utf-8")
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(fake))
    assert ensure(["alpha==1.0"], index) == Layer(installed=("alpha==1.0",), path=ensure(["alpha==1.0"], index).path)
    assert not any(str(fake) in command for command in starts)
    monkeypatch.delenv("PIP_INDEX_URL")
    with pytest.raises(PackageError, match=r"could not be installed\. It said nothing"):
        ensure(["alpha==2.0"], index)
    assert any(str(fake) in command for command in starts)


def test_an_unused_layer_costs_no_import_of_subprocess(settings):
    ensure(["alpha"], settings)
    program = (
        "import sys; from fumehood.config import Settings; from fumehood.packages import ensure\n"
        "ensure(['alpha'], Settings(wheelhouse=sys.argv[1], packages_dir=sys.argv[2]))\n"
        "print([name for name in ('subprocess', 'fumehood.installer') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, settings.wheelhouse, settings.packages_dir]
    assert subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.strip() == "[]"
