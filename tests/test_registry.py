from __future__ import annotations

import sys

import pytest

from fumehood import BackendUnavailable, ExtraMissing, UnknownBackend, get_sandbox, registry
from fumehood.backends.fake import FakeBackend
from fumehood.config import Settings


def install(monkeypatch, tmp_path, name: str, target: str) -> None:
    """A third party's distribution with one backend, as pip would leave it."""
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {target}\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_built_in_backend_is_opened_by_name():
    assert isinstance(registry.open_backend(Settings(type="fake")), FakeBackend)


def test_every_built_in_name_is_listed():
    assert {"local", "docker", "kubernetes", "e2b", "modal", "vercel", "remote", "fake"} <= set(registry.names())


def test_an_unknown_name_lists_the_names_and_the_closest():
    with pytest.raises(UnknownBackend, match=r"Did you mean 'local'\?.*SANDBOX_TYPE.*docker"):
        registry.factory("locale")


def test_a_planned_backend_is_said_to_be_missing_from_this_version(monkeypatch):
    monkeypatch.setitem(registry._BUILT_IN, "planned", ("fumehood.backends.planned", "PlannedBackend"))
    with pytest.raises(BackendUnavailable, match="not part of this version"):
        registry.factory("planned")


def test_a_missing_dependency_names_the_command_to_type(monkeypatch, tmp_path):
    (tmp_path / "needy_backend.py").write_text("import a_package_nobody_has\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry._BUILT_IN, "needy", ("needy_backend", "NeedyBackend"))
    with pytest.raises(ExtraMissing, match=r"a_package_nobody_has.*pip install 'fumehood\[needy\]'"):
        registry.factory("needy")


def test_a_third_party_backend_is_found_by_its_entry_point(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "theirs", "fumehood.backends.fake:FakeBackend")
    assert "theirs" in registry.names()
    assert get_sandbox("theirs").execute("hello").stdout == "hello"


def test_a_third_party_backend_that_does_not_load_says_so(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "broken", "no_such_module_at_all:Backend")
    with pytest.raises(BackendUnavailable, match=r"'broken'.*no_such_module_at_all"):
        registry.factory("broken")


def test_a_third_party_cannot_replace_a_built_in(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "fake", "no_such_module_at_all:Backend")
    assert registry.factory("fake") is FakeBackend
    assert registry.names().count("fake") == 1


def test_built_ins_are_found_without_looking_at_the_installed_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "importlib.metadata", None)
    assert registry.factory("fake") is FakeBackend
