"""Modules imported ahead: there at once, unseen until imported, as if fresh; a bad one is named and left out."""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fumehood import get_sandbox
from fumehood.engine import engine as engines
from fumehood.engine import frames, plan, zygotes
from fumehood.engine.root import Root
from fumehood.errors import IsolationUnavailable
from fumehood.types import Limits
from support import HANG_S


@pytest.fixture(autouse=True)
def _own_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zygote for each test, which ends with it."""
    mine: dict[Any, engines.Engine] = {}
    monkeypatch.setattr(engines, "_engines", mine)
    yield
    for engine in mine.values():
        for root in engine._roots.values():
            root.close()


@contextmanager
def preloaded(*modules: str, **settings: Any) -> Iterator[Any]:
    settings = {"warm_cells": 0, "require": "sealed", **settings}
    sandbox = get_sandbox(isolation="sealed", store_code="never", preload=modules, timeout_sec=HANG_S, **settings)
    with sandbox:
        try:
            assert sandbox.execute("print('up')").stdout == "up\n"
        except IsolationUnavailable as missing:
            pytest.skip(f"no sealed sandbox on this machine: {missing}")
        yield sandbox


def run(sandbox: Any, code: str) -> str:
    result = sandbox.execute(code)
    assert result.exit_code == 0, result
    return str(result.stdout)


@pytest.fixture
def module() -> Iterator[Callable[[str], str]]:
    """Installs a module under a name of its own where the interpreter looks for packages."""
    site = Path(sysconfig.get_path("purelib"))
    if sys.prefix == sys.base_prefix or not os.access(site, os.W_OK):
        pytest.skip(f"no virtual environment that modules can be written to: {site}")
    made: list[Path] = []

    def install(text: str) -> str:
        name = f"fumehood_test_{secrets.token_hex(6)}"
        made.append(site / f"{name}.py")
        made[-1].write_text(text)
        made[-1].chmod(0o644)  # whatever the umask
        return name

    yield install
    for path in made:
        path.unlink()
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "fumehood.engine"]


def check_left_out(caplog: pytest.LogCaptureFixture, sandbox: Any, name: str, why: str) -> None:
    """It alone, by name, once; the good ones beside it are there."""
    said = warnings(caplog)
    assert len(said) == 1, said
    assert name in said[0]
    assert why in said[0]
    assert "SANDBOX_PRELOAD" in said[0]
    assert [record.levelno for record in caplog.records if record.name == "fumehood.engine"] == [logging.WARNING]
    for _ in range(2):
        seen = run(sandbox, f"import sys; print([n in sys.modules for n in ('decimal', 'sqlite3', {name!r})])")
        assert seen == "[True, True, False]\n"
    assert len(warnings(caplog)) == 1


# ---- what a program sees


@pytest.mark.parametrize("warm_cells", [0, 2])
def test_a_preloaded_module_is_there_and_unseen(warm_cells: int) -> None:
    look = """
names = set(globals())
import sys, builtins
print({'json', 'decimal', 'sqlite3', 'email.message'} - set(sys.modules), [name for name in names if name[:2] != '__'])
print([name for name in ('json', 'decimal', 'sqlite3', 'email') if name in names or hasattr(builtins, name)])
import decimal, email.message, json, sqlite3
print(json.loads('[1]'), decimal.Decimal('0.1') * 3, sqlite3.connect(':memory:').execute('select 6 * 7').fetchone())
open('/tmp/x.py', 'w').write('import json; print(json.dumps({}))')
import subprocess; print(subprocess.run([sys.executable, '/tmp/x.py'], capture_output=True, text=True).stdout)
"""
    with preloaded("json", "decimal", "sqlite3", "email.message", warm_cells=warm_cells) as sandbox:
        for _ in range(3):
            assert run(sandbox, look).splitlines() == ["set() []", "[]", "[1] 0.3 (42,)", "{}", ""]


def test_without_preloading_these_modules_are_not_there() -> None:
    """What the test above looks for would be noticed."""
    with preloaded() as sandbox:
        assert run(sandbox, "import sys; print({'decimal', 'sqlite3', 'email'} & set(sys.modules))") == "set()\n"


def test_what_one_program_does_to_a_preloaded_module_is_not_seen_by_the_next() -> None:
    with preloaded("decimal", warm_cells=2) as sandbox:
        for _ in range(3):
            code = "import decimal; print(hasattr(decimal, 'left'), decimal.getcontext().prec)\n"
            assert run(sandbox, code + "decimal.left = 1; decimal.getcontext().prec = 5") == "False 28\n"


def test_the_environment_and_the_search_path_are_as_without_preloading() -> None:
    look = "import os, sys; print(sorted(os.environ.items()), sys.path, os.getcwd(), sys.argv, sys.gettrace())"
    with preloaded("decimal", "sqlite3") as sandbox, preloaded() as plain:
        assert run(sandbox, look) == run(plain, look)


LOOKS_FOR_LEFTOVERS = """
import os
inside = os.listdir('/proc/self/fd')
print(sorted(int(fd) for fd in inside if os.path.exists(f'/proc/self/fd/{fd}')), len(os.listdir('/proc/self/task')))
print(len(open('/proc/net/unix').readlines()) if os.path.exists('/proc/net/unix') else 1)
"""


@pytest.mark.parametrize("warm_cells", [0, 2])
def test_what_a_module_opened_and_started_at_import_is_not_inherited(
    module: Callable[[str], str], caplog: pytest.LogCaptureFixture, warm_cells: int
) -> None:
    name = module(
        "import socket, threading, time\nkept = [socket.socket(socket.AF_UNIX), open('/dev/null'), open(__file__)]\n"
        "thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)\nthread.start()\n"
    )
    with preloaded(name, warm_cells=warm_cells) as sandbox:
        for _ in range(3):
            assert run(sandbox, f"import sys; assert {name!r} in sys.modules\n{LOOKS_FOR_LEFTOVERS}").startswith(
                "[0, 1, 2] 1\n"
            )
            assert run(sandbox, f"import {name}, threading; print(threading.active_count())") == "1\n"
    assert warnings(caplog) == []


@pytest.mark.parametrize("warm_cells", [0, 2])
def test_random_numbers_differ_between_programs(warm_cells: int) -> None:
    code = "import random, secrets, uuid\nprint(random.random(), random.random(), secrets.token_hex(8), uuid.uuid4())"
    with preloaded("random", "secrets", "uuid", warm_cells=warm_cells) as sandbox:
        numbers = [number for _ in range(4) for number in run(sandbox, code).split()]
    assert len(set(numbers)) == len(numbers)


PRINTS = {
    "stdout": "print('hello'); print('there', end='')",
    "stderr": "import sys; print('hello', end='', file=sys.stderr)",
    "C": "import ctypes; ctypes.CDLL(None).printf(b'hello')",
}


@pytest.mark.parametrize("warm_cells", [0, 2])
@pytest.mark.parametrize("by", ["stdout", "stderr", "C"])
def test_what_a_module_prints_at_its_import_is_not_every_programs_output(
    by: str, module: Callable[[str], str], warm_cells: int
) -> None:
    name = module(PRINTS[by])
    with preloaded(name, warm_cells=warm_cells) as sandbox:
        for _ in range(3):
            result = sandbox.execute(f"import sys; print({name!r} in sys.modules)")
            assert (result.stdout, result.stderr) == ("True\n", "")


def test_what_a_module_writes_at_its_import_is_not_where_programs_write(module: Callable[[str], str]) -> None:
    name = module(
        "import os, tempfile\nfor place in ('/tmp', '/workspace', os.path.expanduser('~'), '/dev/shm'):\n"
        "    try: open(place + '/written', 'w').write('x')\n    except OSError: pass\n"
    )
    look = "import os, sys\nplaces = '/tmp', '/workspace', os.path.expanduser('~'), '/dev/shm'\n"
    look += "print([place for place in places if 'written' in os.listdir(place)])\n"
    with preloaded(name) as sandbox:
        assert run(sandbox, f"{look}print({name!r} in sys.modules)") == "[]\nTrue\n"


# ---- modules that cannot be preloaded


BAD_IMPORTS = {
    "raises": ("raise RuntimeError('out of order')", "RuntimeError: out of order"),
    "exits": ("import sys; sys.exit(3)", "SystemExit"),
    "ends the interpreter": ("import os; os._exit(3)", "its import ended the interpreter"),
    "dies": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL); import ctypes; ctypes.string_at(0)", "ended"),
    "hangs": ("import time; time.sleep(1000)", "its import did not end"),
    "does not parse": ("def (", "SyntaxError"),
}


def soon_given_up(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its import, and no other: they may be slow."""
    parse = frames.parse_name

    def parse_name(frame: bytes) -> str:
        found = parse(frame)
        monkeypatch.setattr(zygotes, "_IMPORT_S", 0.5 if found == name else HANG_S)
        return found

    monkeypatch.setattr(frames, "parse_name", parse_name)


@pytest.mark.parametrize("kind", BAD_IMPORTS)
def test_a_module_that_cannot_be_imported_is_named_and_left_out(
    kind: str, module: Callable[[str], str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, why = BAD_IMPORTS[kind]
    name = module(text)
    if kind == "hangs":
        soon_given_up(monkeypatch, name)
    with preloaded("decimal", name, "sqlite3") as sandbox:
        check_left_out(caplog, sandbox, name, why)


def test_a_module_that_does_not_exist_is_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with preloaded("decimal", "no_such_module_here", "sqlite3") as sandbox:
        check_left_out(caplog, sandbox, "no_such_module_here", "ModuleNotFoundError")


BAD_FORKS = {
    "ends the program": "import os; os.register_at_fork(after_in_child=lambda: os._exit(3))",
    "hangs the program": "import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(1000))",
    "ends the zygote": "import os; os.register_at_fork(after_in_parent=lambda: os._exit(3))",
    "hangs the zygote": "import os, time; os.register_at_fork(before=lambda: time.sleep(1000))",
}


@pytest.mark.parametrize("kind", BAD_FORKS)
def test_a_module_that_breaks_forked_sandboxes_is_named_and_left_out(
    kind: str, module: Callable[[str], str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(BAD_FORKS[kind])
    works = engines._imports_in_a_cell

    def soon_given_up(root: Root, limits: Limits) -> bool:
        """Where the bad one is among them; others may be slow."""
        wait_s = 1.0 if name in root.preload else HANG_S
        root.zygote._answer_s = wait_s
        monkeypatch.setattr(engines, "_READY_S", wait_s)
        return works(root, limits)

    monkeypatch.setattr(engines, "_imports_in_a_cell", soon_given_up)
    with preloaded("decimal", name, "sqlite3") as sandbox:
        check_left_out(caplog, sandbox, name, "a sandbox forked from it fails or hangs")


def test_a_module_whose_memory_programs_would_share_is_named_and_left_out(
    module: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Two sealed programs could talk by it, or one change what the other computes."""
    shares = module("import mmap\nshared = mmap.mmap(-1, 4096)\n")
    private = module("import mmap\nown = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n")
    with preloaded(shares, private) as sandbox:
        code = f"import sys, {shares}\nprint({shares}.shared[0], '{private}' in sys.modules)\n{shares}.shared[0] = 7"
        assert [sandbox.execute(code).stdout for _ in range(2)] == ["0 True\n"] * 2
    assert f"{shares} cannot be preloaded" in caplog.text
    assert "all programs would share" in caplog.text
    assert private not in caplog.text


def test_several_bad_modules_are_each_named(module: Callable[[str], str], caplog: pytest.LogCaptureFixture) -> None:
    names = [module("raise ValueError"), module("import os; os._exit(1)"), module(BAD_FORKS["ends the program"])]
    with preloaded(names[0], "decimal", names[1], names[2]) as sandbox:
        assert run(sandbox, "import sys; print('decimal' in sys.modules)") == "True\n"
    said = warnings(caplog)
    for name in names:
        assert [name in line for line in said].count(True) == 1, said


def test_a_module_left_out_is_still_the_programs_to_import(module: Callable[[str], str]) -> None:
    name = module("import os\nif os.getpid() != 2: raise RuntimeError('not now')\nvalue = 7")
    with preloaded(name) as sandbox:
        assert run(sandbox, f"import {name}; print({name}.value)") == "7\n"


def test_a_replaced_zygote_preloads_again() -> None:
    with preloaded("decimal") as sandbox:
        root = sandbox._backend._engine._roots[False]
        os.kill(root.zygote._pid, 9)
        assert run(sandbox, "import sys; print('decimal' in sys.modules)") == "True\n"


def test_a_poorer_host_still_preloads(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that this host refuses and a cell can do without is no fault of the modules."""
    real = plan.plan_sealed_cell

    def with_proc_refused(caller: Any, zygote: Any, limits: Any, seccomp: Any, *rest: Any, **named: Any) -> Any:
        cell = real(caller, zygote, limits, seccomp, *rest, **named)
        if ("proc",) not in cell.cell_steps:
            return cell
        at = cell.cell_steps.index(("proc",))  # behind the filter no one mounts
        locks = (("no_new_privileges",), ("seccomp", seccomp))
        return cell._replace(cell_steps=(*cell.cell_steps[:at], *locks, *cell.cell_steps[at:]))

    monkeypatch.setattr(plan, "plan_sealed_cell", with_proc_refused)
    with preloaded("decimal", "sqlite3", require=None) as sandbox:  # without groups its memory has no bound
        assert run(sandbox, "import os; print(os.listdir('/proc'))") == "[]\n"
        assert run(sandbox, "import sys; print('decimal' in sys.modules, 'sqlite3' in sys.modules)") == "True True\n"
    assert warnings(caplog) == []


# ---- the data stack


def need(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed for {sys.executable}")


USES = {
    "numpy": "import numpy as np\na = np.arange(250000.).reshape(500, 500)\nprint((a @ np.eye(500) == a).all())",
    "polars": "import polars as pl\nframe = pl.DataFrame({'k': [1, 1, 2], 'v': [1, 2, 3]})\n"
    "print(frame.group_by('k').agg(pl.col('v').sum()).sort('k')['v'].to_list() == [3, 3])",
    "sklearn": "from sklearn.linear_model import LinearRegression\n"
    "print(abs(LinearRegression().fit([[0], [1], [2]], [0, 2, 4]).coef_[0] - 2) < 1e-9)",
    "matplotlib": "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n"
    "plt.savefig('/tmp/a.png')\nprint(open('/tmp/a.png', 'rb').read(4) == b'\\x89PNG')",
}


@pytest.mark.parametrize("name", USES)
def test_a_preloaded_data_library_works(name: str, caplog: pytest.LogCaptureFixture) -> None:
    need(name)
    modules = {"sklearn": ("sklearn.linear_model",), "matplotlib": ("matplotlib.pyplot",)}.get(name, (name,))
    with preloaded(*modules, warm_cells=1, memory_mb=2000) as sandbox:
        for _ in range(3):
            before = run(sandbox, f"import sys; print({modules[0]!r} in sys.modules)\n{LOOKS_FOR_LEFTOVERS}")
            assert before.startswith("True\n[0, 1, 2] 1\n")
            assert run(sandbox, USES[name]) == "True\n"
    assert warnings(caplog) == []


def test_numpys_random_numbers_differ_between_programs() -> None:
    need("numpy")
    code = "import numpy as np; print(np.random.rand(), np.random.randint(1 << 60), np.random.default_rng().random())"
    code += "\nprint(np.random.RandomState().rand(), np.random.get_state()[1][0])"
    with preloaded("numpy", "numpy.random", warm_cells=2) as sandbox:
        numbers = [number for _ in range(4) for number in run(sandbox, code).split()]
        assert len(set(numbers)) == len(numbers)
        seeded = "import numpy as np; np.random.seed(3); print(np.random.rand())"
        assert run(sandbox, seeded) == run(sandbox, seeded)


def test_all_of_the_data_stack_together_works(caplog: pytest.LogCaptureFixture) -> None:
    need("numpy", "polars", "sklearn")
    with preloaded("numpy", "polars", "sklearn.linear_model", warm_cells=2, memory_mb=2000) as sandbox:
        for _ in range(2):
            for name in ("numpy", "polars", "sklearn"):
                assert run(sandbox, USES[name]) == "True\n"
    assert warnings(caplog) == []
