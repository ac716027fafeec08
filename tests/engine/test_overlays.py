"""The trees of the root are shown by overlays: what is on the host is what a program sees."""

from __future__ import annotations

import secrets
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from fumehood import get_sandbox
from support import HANG_S

KIND = {"isolation": "sealed", "require": "sealed", "store_code": "never"}


@pytest.fixture
def package() -> Iterator[Path]:
    """The place of a package that nobody else knows, beside the installed ones."""
    path = Path(sysconfig.get_path("purelib"), f"of_test_overlays_{secrets.token_hex(8)}")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def install(package: Path, value: int) -> None:
    """As installers do: what was there is moved away, and removed at the end."""
    aside = package.with_name(f"~{package.name}")
    if package.exists():
        package.rename(aside)
    package.mkdir()
    (package / "__init__.py").write_text(f"from .part import value; print(value, {value})")
    (package / "part.py").write_text(f"value = {value}")
    for path in (package, *package.iterdir()):
        path.chmod(0o755)
    shutil.rmtree(aside, ignore_errors=True)


@pytest.mark.parametrize("warm_cells", [0, 2])
def test_what_is_installed_or_upgraded_meanwhile_is_found(package: Path, warm_cells: int) -> None:
    with get_sandbox(**KIND, warm_cells=warm_cells) as sandbox:

        def said() -> str:
            result = sandbox.execute(f"import {package.name}", timeout=HANG_S)
            return result.stdout or result.stderr.splitlines()[-1]

        assert said() == f"ModuleNotFoundError: No module named '{package.name}'"
        for value in (1, 2):
            install(package, value)
            assert [said() for _ in range(warm_cells + 1)] == [f"{value} {value}\n"] * (warm_cells + 1)


MOUNTED = """
import subprocess
from pathlib import Path
from fumehood import get_sandbox

subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", "/usr/share"], check=True)
Path("/usr/share/mounted").write_text("there")
with get_sandbox(isolation="sealed", require="sealed", store_code="never") as sandbox:
    print(sandbox.execute("import os; print(os.listdir('/usr/share'), len(os.listdir('/usr/bin')) > 1)").stdout)
"""


def test_a_tree_with_another_mount_in_it_is_shown_whole(elsewhere, public_path: Path) -> None:
    assert elsewhere(MOUNTED, str(public_path)) == "['mounted'] True\n\n"
