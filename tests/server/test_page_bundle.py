"""The page's bundle is what its source gives, and its source takes exact packages from no named place."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support import HANG_S

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
PAGE = ROOT / "src" / "fumehood" / "server" / "page"
NO_REGISTRY = r"ENOTFOUND|ECONN|EAI_AGAIN|TIMEDOUT|_TIMEOUT|EACCES|E40[0-9]\b|E50[0-9]\b|_CERT"
pytestmark = pytest.mark.skipif(not WEB.is_dir(), reason="the page's source is not here")


def contents(top: Path) -> dict[str, bytes]:
    return {str(file.relative_to(top)): file.read_bytes() for file in top.rglob("*") if file.is_file()}


def test_a_rebuild_gives_the_same_bytes(tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("needs node and npm, which build the page")
    source = tmp_path / "web"
    shutil.copytree(WEB, source, ignore=shutil.ignore_patterns("node_modules"))
    fetching = ("--prefer-offline", "--fetch-retries=1", "--fetch-timeout=60000")
    install = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", *fetching]
    kinds = {"cwd": source, "capture_output": True, "encoding": "utf-8", "timeout": HANG_S}
    installed = subprocess.run(install, **kinds)
    refusals = [line for line in installed.stderr.splitlines() if re.search(NO_REGISTRY, line)]
    if installed.returncode != 0 and refusals:
        pytest.skip(f"needs npm's registry, which does not give the packages here: {refusals[0]}")
    assert installed.returncode == 0, installed.stderr
    subprocess.run([node, "build.mjs", "--out", str(tmp_path / "page")], check=True, **kinds)
    built, kept = contents(tmp_path / "page"), contents(PAGE)
    assert sorted(built) == sorted(kept)
    assert [name for name in kept if built[name] != kept[name]] == []


def test_every_package_is_pinned_and_the_lock_file_names_no_host() -> None:
    package = json.loads((WEB / "package.json").read_text("utf-8"))
    versions = {**package["dependencies"], **package["devDependencies"]}.values()
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
    lock = (WEB / "package-lock.json").read_text("utf-8")
    assert "resolved" not in lock
    assert "://" not in lock


def test_the_page_loads_nothing_from_elsewhere_and_has_nothing_inline() -> None:
    page = (PAGE / "index.html").read_text("utf-8")
    assert "://" not in page
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    assert set(re.findall(r'(?:src|href)="([^"]+)"', page)) == {"assets/app.css", "assets/app.js", "assets/icon.svg"}
    assert all((PAGE / name).is_file() for name in ("assets/app.css", "assets/app.js", "assets/icon.svg"))
