"""Every refusal that is known ends in a sentence with the next step in it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fumehood.engine import diagnose
from fumehood.engine.diagnose import errno_name, fix_for

USER_STEPS = ["namespaces", "clone", "unshare", "map_ids", "private_mounts", "bound_kernel_objects"]
MOUNT_STEPS = ["open_trees", "new_root", "attach_trees", "enter_root", "private_tree", "uncover"]


@pytest.fixture(autouse=True)
def a_plain_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No AppArmor, no container, namespaces allowed: whatever the tests run on."""
    monkeypatch.setattr(diagnose, "_APPARMOR", str(tmp_path / "apparmor"))
    monkeypatch.setattr(diagnose, "_DEBIAN", str(tmp_path / "debian"))
    monkeypatch.setattr(diagnose, "_CONTAINER_MARKS", (str(tmp_path / "dockerenv"), str(tmp_path / "containerenv")))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
@pytest.mark.parametrize("step", USER_STEPS + MOUNT_STEPS)
def test_apparmor_is_named_where_it_restricts(step: str, number: int, tmp_path: Path) -> None:
    (tmp_path / "apparmor").write_text("1\n")
    text = fix_for(step, number)
    assert "AppArmor" in text
    assert "userns," in text
    assert "/etc/apparmor.d" in text


def test_apparmor_that_does_not_restrict_is_not_blamed(tmp_path: Path) -> None:
    (tmp_path / "apparmor").write_text("0\n")
    assert "AppArmor restricts" not in fix_for("namespaces", errno.EPERM)


@pytest.mark.parametrize("mark", ["dockerenv", "containerenv"])
def test_a_container_is_told_its_options(mark: str, tmp_path: Path) -> None:
    (tmp_path / mark).touch()
    text = fix_for("namespaces", errno.EPERM)
    assert "--security-opt seccomp=unconfined" in text
    assert "apparmor=unconfined" in text


def test_apparmor_of_the_host_comes_before_the_container(tmp_path: Path) -> None:
    (tmp_path / "apparmor").write_text("1\n")
    (tmp_path / "dockerenv").touch()
    assert "Ubuntu" in fix_for("map_ids", errno.EACCES)


def test_debians_switch_is_named_when_it_is_off(tmp_path: Path) -> None:
    (tmp_path / "debian").write_text("0\n")
    assert "sysctl kernel.unprivileged_userns_clone=1" in fix_for("clone", errno.EPERM)
    (tmp_path / "debian").write_text("1\n")
    assert "unprivileged_userns_clone" not in fix_for("clone", errno.EPERM)


def test_an_unknown_refusal_is_said_to_be_a_policy() -> None:
    assert "security policy" in fix_for("namespaces", errno.EPERM)


@pytest.mark.parametrize("step", USER_STEPS)
def test_no_room_for_namespaces_names_the_sysctl(step: str) -> None:
    assert "user.max_user_namespaces" in fix_for(step, errno.ENOSPC)


def test_a_full_file_system_is_not_taken_for_the_namespace_limit() -> None:
    assert "max_user_namespaces" not in fix_for("skeleton", errno.ENOSPC)


@pytest.mark.parametrize("step", ["proc", "root_proc"])
def test_a_masked_proc_names_the_containers_option(step: str) -> None:
    assert "systempaths=unconfined" in fix_for(step, errno.EPERM)


@pytest.mark.parametrize("step", ["open_trees", "attach_trees", "seccomp", "landlock", "namespaces"])
def test_a_missing_call_names_the_kernel(step: str) -> None:
    assert "Linux 5.12" in fix_for(step, errno.ENOSYS)


def test_seccomp_and_landlock_have_their_own_sentences() -> None:
    assert "seccomp filters" in fix_for("seccomp", errno.EINVAL)
    assert "CONFIG_SECURITY_LANDLOCK" in fix_for("landlock", 0)


@pytest.mark.parametrize("step", ["limits", "hostname", "loopback", "a step of tomorrow"])
def test_anything_else_points_to_the_doctor(step: str) -> None:
    assert "fumehood doctor" in fix_for(step, errno.EIO)


def test_an_unreadable_switch_is_no_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    monkeypatch.setattr(diagnose, "_APPARMOR", str(tmp_path / "directory"))
    assert "security policy" in fix_for("namespaces", errno.EPERM)


def test_numbers_have_names() -> None:
    assert errno_name(errno.EPERM) == "EPERM"
    assert errno_name(0) == "no answer"
    assert errno_name(9999) == "9999"
