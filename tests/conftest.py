from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_settings_from_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Every test starts from the defaults, in an empty directory that its records may go to."""
    for name in list(os.environ):
        if name.startswith(("SANDBOX_", "DOCKER_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
