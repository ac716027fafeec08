"""The host in a tree that hostile code writes to: every path stays inside, and every failure has its name."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import resource
import socket
import threading

import pytest

from fumehood.backends._local_async import KeptSandbox
from fumehood.engine.files import Files, ManyFiles, listing_at_most
from fumehood.errors import EngineFailed, FileError
from fumehood.guest import files as guest_files
from harness.attacks import BY_DESCRIPTORS, EXHAUSTS
from support import wait_until


@pytest.fixture
def tree(tmp_path):
    for name in ("workspace", "tmp", "tmp/data"):
        (tmp_path / "root" / name).mkdir(parents=True)
    (tmp_path / "secret").write_text("of the host")
    return tmp_path / "root"


@pytest.fixture
def files(tree):
    files = Files(os.open(tree, os.O_PATH | os.O_DIRECTORY), {"/workspace": "workspace", "/tmp": "tmp"})
    yield files
    files.close()


def kind_of(call, *args):
    with pytest.raises(FileError) as caught:
        call(*args)
    assert str(caught.value)
    return caught.value.kind


def test_what_was_written_is_read(files, tree):
    files.write("/workspace/a/b/c.txt", b"\0\xff text")
    assert files.read("/workspace/a/b/c.txt", 100) == b"\0\xff text"
    assert (tree / "workspace/a/b/c.txt").stat().st_mode & 0o777 == 0o600
    files.write("/workspace/a/b/c.txt", b"")
    assert files.read("/workspace/a/b/c.txt", 0) == b""


def test_a_write_leaves_nothing_beside_the_file(files, tree):
    files.write("/tmp/x", b"1")
    (tree / "tmp/d").mkdir()
    assert kind_of(files.write, "/tmp/d", b"2") == "directory"
    assert sorted(os.listdir(tree / "tmp")) == ["d", "data", "x"]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/workspaces/x", "workspace/x", "", "/", "/tmp/../secret", "/tmp/a/../../x"]
)
@pytest.mark.attack(
    BY_DESCRIPTORS,
    without="nothing to escape from: a plain open takes any path",
)
def test_a_path_outside_is_refused(files, path):
    assert kind_of(files.read, path, 10) == "invalid"
    assert kind_of(files.write, path, b"x") == "invalid"


@pytest.mark.attack(
    BY_DESCRIPTORS,
    without="nothing to escape from: a plain open follows the link",
)
def test_no_link_is_followed(files, tree):
    (tree / "workspace/link").symlink_to("../../secret")
    (tree / "workspace/up").symlink_to("../..")
    (tree / "workspace/root").symlink_to("/")
    (tree / "workspace/proc").symlink_to("/proc/self/root/etc")
    assert kind_of(files.read, "/workspace/link", 100) == "special"
    for path in ("/workspace/up/secret", "/workspace/root/etc/passwd", "/workspace/proc/passwd"):
        assert kind_of(files.read, path, 100) == "special"
        assert kind_of(files.write, path, b"x") == "special"
    assert (tree.parent / "secret").read_text() == "of the host"


def test_writing_over_a_link_replaces_the_link(files, tree):
    (tree / "tmp/out").symlink_to("../../secret")
    files.write("/tmp/out", b"new")
    assert not (tree / "tmp/out").is_symlink()
    assert (tree.parent / "secret").read_text() == "of the host"


@pytest.mark.attack(
    BY_DESCRIPTORS,
    without="nothing to escape from: a plain open takes any kind",
)
def test_only_regular_files_are_read(files, tree):
    os.mkfifo(tree / "tmp/fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(
            f"/proc/self/fd/{(at := os.open(tree / 'tmp', os.O_PATH))}/socket"
        )  # its own path may be too long
        os.close(at)
        assert kind_of(files.read, "/tmp/fifo", 10) == "special"
        assert kind_of(files.read, "/tmp/socket", 10) == "special"
        assert kind_of(files.read, "/tmp/data", 10) == "directory"
        assert kind_of(files.read, "/tmp/none", 10) == "missing"
        assert kind_of(files.read, "/tmp/none/none", 10) == "missing"


def test_no_more_is_read_than_allowed(files):
    files.write("/tmp/x", b"12345")
    assert files.read("/tmp/x", 5) == b"12345"
    assert kind_of(files.read, "/tmp/x", 4) == "too_large"


def test_a_name_too_long_is_invalid(files):
    assert kind_of(files.write, "/tmp/" + "n" * 256, b"") == "invalid"


def others(found):
    return {stat.path: stat.why for stat in found if stat.why}


def plain(found):
    return [stat for stat in found if not stat.why]


def test_a_listing_has_regular_files_of_any_name_and_says_what_the_rest_is(files, tree):
    files.write("/tmp/a", b"1")
    files.write("/tmp/deep/er/b", b"22")
    files.write("/tmp/data/set.csv", b"333")
    (tree / "tmp/link").symlink_to("a")
    (tree / "tmp/updir").symlink_to("../workspace")
    os.mkfifo(tree / "tmp/fifo")
    (tree / "tmp/new\nline").write_text("")
    for name in (b"\xfe", b"\xff"):
        open(os.fsencode(tree) + b"/tmp/" + name, "wb").close()
    found = files.beneath("/tmp", leave_out="/tmp/data")
    assert sorted((stat.path, stat.size) for stat in plain(found)) == [
        ("/tmp/\x1afe", 0),
        ("/tmp/\x1aff", 0),
        ("/tmp/a", 1),
        ("/tmp/deep/er/b", 2),
        ("/tmp/new\nline", 0),
    ]
    assert others(found) == {
        "/tmp/fifo": "a named pipe",
        "/tmp/link": "a symbolic link, which is never followed",
        "/tmp/updir": "a symbolic link, which is never followed",
    }
    assert files.beneath("/workspace/none") == []


def test_what_is_in_place_of_a_directory_is_said(files, tree):
    (tree / "tmp/link").symlink_to("data")
    (tree / "tmp/file").touch()
    link = "a symbolic link, which is never followed"
    for path, why in (("/tmp/link", link), ("/tmp/file", "a file, not a directory")):
        assert others(files.beneath(path)) == {path: why}
        assert not files.has_nothing(path)
    assert others(files.beneath("/tmp/link/data")) == {"/tmp/link/data": "a directory that cannot be looked into"}


def test_a_directory_that_may_not_be_entered_is_named(files, tree, monkeypatch):
    (tree / "tmp/closed").mkdir()
    (tree / "tmp/closed/a").touch()
    (tree / "tmp/b").touch()
    closed = os.stat(tree / "tmp/closed").st_ino
    real = os.open

    def opened(path, flags, mode=0o777, *, dir_fd=None):
        """As for somebody who is not root, who runs this test as well."""
        if path == "." and os.fstat(dir_fd).st_ino == closed:
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(guest_files.os, "open", opened)
    found = files.beneath("/tmp")
    assert [stat.path for stat in plain(found)] == ["/tmp/b"]
    assert others(found) == {"/tmp/closed": "a directory that cannot be looked into"}
    assert others(files.beneath("/tmp/closed")) == {"/tmp/closed": "a directory that cannot be looked into"}
    assert not files.has_nothing("/tmp/closed")


def test_a_listing_says_which_files_a_reader_would_be_refused(files, tree, monkeypatch):
    real = os.open

    def opened(path, flags, mode=0o777, *, dir_fd=None):
        """As for somebody who is not root, who runs this test as well."""
        fd = real(path, flags, mode, dir_fd=dir_fd)
        if not flags & (os.O_PATH | os.O_CREAT) and not os.fstat(fd).st_mode & 0o400:
            os.close(fd)
            raise PermissionError(13, "Permission denied")
        return fd

    modes = {"none": 0, "others": 0o044, "owner": 0o600, "read-only": 0o400, "all": 0o644}
    for name, mode in modes.items():
        (tree / "tmp" / name).write_text("text")
        (tree / "tmp" / name).chmod(mode)
    monkeypatch.setattr(guest_files.os, "open", opened)
    found = files.beneath("/tmp")
    assert others(found) == dict.fromkeys(["/tmp/none", "/tmp/others"], "a file that may not be opened")
    for stat in found:
        assert stat.size == 4
        if stat.why:
            assert kind_of(files.read, stat.path, 10) == "denied"
        else:
            assert files.read(stat.path, 10) == b"text"


def test_what_replaces_a_file_that_nobody_may_read_can_be_read(files, tree):
    for before, after in ((0, 0o400), (0o044, 0o444), (0o750, 0o750)):
        (tree / "tmp/x").write_text("")
        (tree / "tmp/x").chmod(before)
        files.write("/tmp/x", b"new")
        assert (tree / "tmp/x").stat().st_mode & 0o777 == after
        (tree / "tmp/x").unlink()


def test_a_file_that_is_taken_away_meanwhile_hides_no_other(files, tree, monkeypatch):
    for name in "abc":
        (tree / f"tmp/{name}").touch()
    goes_on = guest_files._Walk._goes_on

    def removes_one(self):
        (tree / "tmp/b").unlink(missing_ok=True)
        return goes_on(self)

    monkeypatch.setattr(guest_files._Walk, "_goes_on", removes_one)
    assert sorted(stat.path for stat in files.beneath("/tmp")) == ["/tmp/a", "/tmp/c"]


def test_a_directory_without_entries_is_told_from_others(files, tree):
    assert files.has_nothing("/workspace/none")
    (tree / "tmp/empty").mkdir()
    assert files.has_nothing("/tmp/empty")
    assert not files.has_nothing("/tmp")
    files.write("/tmp/empty/a", b"")
    assert not files.has_nothing("/tmp/empty")
    (tree / "tmp/link").symlink_to("empty")
    assert not files.has_nothing("/tmp/link")  # it is something itself


def test_a_change_that_hides_its_time_changes_the_version(files, tree):
    files.write("/tmp/a", b"1")
    before = files.beneath("/tmp")
    os.utime(tree / "tmp/a", ns=(1, 1))
    wait_for_another_time(tree / "workspace/clock", (tree / "tmp/a").stat().st_ctime_ns)
    (tree / "tmp/a").write_text("2")
    os.utime(tree / "tmp/a", ns=(1, 1))
    assert files.beneath("/tmp") != before


def wait_for_another_time(file, before_ns):
    """The kernel's time of files goes in steps."""

    def is_later():
        file.write_text("")
        return file.stat().st_ctime_ns > before_ns

    assert wait_until(is_later)


@pytest.mark.attack(
    BY_DESCRIPTORS,
    without="the project has no careless reader to compare with",
)
def test_a_tree_that_is_swapped_while_it_is_read_never_leads_outside(files, tree):
    """The program renames a directory and puts a link in its place, again and again."""
    (tree / "workspace/d").mkdir()
    (tree / "workspace/d/secret").write_text("inside")
    (tree / "workspace/l").symlink_to("../..")
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            for old, new in (("d", "x"), ("l", "d"), ("d", "l"), ("x", "d")):
                os.rename(tree / "workspace" / old, tree / "workspace" / new)

    seen = collections.Counter()

    def read_often():
        """Until it was met both as a directory and as a link, and many times."""
        for _ in range(500):
            try:
                seen[files.read("/workspace/d/secret", 100)] += 1
            except FileError as error:
                seen[error.kind] += 1
        return seen.total() >= 5000 and seen[b"inside"] >= 10 and seen["special"] >= 10

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        assert wait_until(read_often), seen
    finally:
        stop.set()
        thread.join()
    assert b"of the host" not in seen


def test_a_closed_tree_says_so(files):
    files.close()
    files.close()
    assert kind_of(files.read, "/tmp/x", 1) == "missing"


def test_a_host_without_descriptors_is_told_so_and_not_that_the_file_is_at_fault(files):
    files.write("/tmp/x", b"1")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        with pytest.raises(EngineFailed, match="ulimit -n"):
            files.read("/tmp/x", 1)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert files.read("/tmp/x", 1) == b"1"


# How much is looked at


def make_deep(directory, names, closes=True):
    """Directories in one another, each opened from the one above: their path is longer than a call takes."""
    fd = os.open(directory, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    if not closes:
        return fd
    os.close(fd)
    return None


def remove_deep(directory, name):
    """What no path leads to, pytest cannot remove."""
    fd, above = os.open(directory, os.O_RDONLY), []
    with contextlib.suppress(FileNotFoundError):
        while True:
            below = os.open(name, os.O_RDONLY, dir_fd=fd)
            above.append(fd)
            fd = below
    os.unlink("file", dir_fd=fd)
    os.close(fd)
    for each in reversed(above):
        os.rmdir(name, dir_fd=each)
        os.close(each)


def test_files_at_paths_too_long_to_use_are_not_listed(files, tree):
    make_deep(tree / "workspace", ["d" * 250] * 30)
    try:
        (tree / "workspace/a").touch()
        found = files.beneath("/workspace")
        assert [stat.path for stat in plain(found)] == ["/workspace/a"]
        ((path, why),) = others(found).items()
        assert path.startswith("/workspace/ddd")
        assert 4096 < len(path) < 4200
        assert why == "a directory too deep to be looked into"
    finally:
        remove_deep(tree / "workspace", "d" * 250)


def test_files_at_paths_too_long_to_use_have_each_a_name(files, tree):
    fd = make_deep(tree / "workspace", ["d" * 250] * 16, closes=False)
    try:
        for number in range(3):
            os.close(os.open("f" * 200 + str(number), os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        long = [stat.path for stat in files.beneath("/workspace") if len(stat.path) > 4096]
        assert len(set(long)) == len(long) == 3
        assert not any(stat.why for stat in files.beneath("/workspace"))
    finally:
        for number in range(3):
            os.unlink("f" * 200 + str(number), dir_fd=fd)
        os.close(fd)
        remove_deep(tree / "workspace", "d" * 250)


def test_a_directory_deeper_than_a_listing_goes_is_named(files):
    path = "/workspace" + "/d" * 65
    files.write(f"{path}/file", b"")
    assert others(files.beneath("/workspace")) == {path: "a directory too deep to be looked into"}


@pytest.mark.attack("a listing looks at a bounded number of entries", without=EXHAUSTS)
@pytest.mark.parametrize("make", ["mkdir", "touch"])
def test_entries_of_every_kind_are_bounded_in_number(files, tree, monkeypatch, make):
    for number in range(50):
        getattr(tree / f"workspace/{number}", make)()
    opened = []
    monkeypatch.setattr(guest_files, "_MAX_LOOKED", 20)
    monkeypatch.setattr(guest_files._Walk, "_descend", lambda *arguments: opened.append(arguments))
    found = files.beneath("/workspace")
    assert len(plain(found)) + len(opened) == 20
    assert others(found) == {"/workspace": "more is there than one listing takes"}


@pytest.mark.parametrize(("bound", "value"), [("_MAX_FOUND", 20), ("_MAX_NAMED", 20 * len("/workspace/00"))])
def test_a_listing_that_stops_at_its_bounds_says_so(files, tree, monkeypatch, bound, value):
    monkeypatch.setattr(guest_files, bound, value)
    for number in range(20):
        (tree / f"workspace/{number:02}").touch()
    assert others(files.beneath("/workspace")) == {}
    (tree / "workspace/20").touch()
    found = files.beneath("/workspace")
    assert len(plain(found)) == 20
    assert others(found) == {"/workspace": "more is there than one listing takes"}


def test_what_is_no_file_is_named_up_to_a_bound(files, tree):
    for number in range(1003):
        (tree / f"workspace/{number}").symlink_to("x")
    (tree / "workspace/file").touch()
    found = files.beneath("/workspace")
    assert [stat.path for stat in plain(found)] == ["/workspace/file"]
    assert len(others(found)) == 1001
    assert others(found)["/workspace"] == "more than 1,000 links, pipes and the like are in it"


@pytest.mark.parametrize("make", ["mkdir", "touch", "pipe"])
def test_a_hasty_look_stops_at_one_entry_too_many(files, tree, make):
    makers = {"mkdir": os.mkdir, "touch": lambda path: path.touch(), "pipe": os.mkfifo}
    for number in range(5):
        makers[make](tree / f"workspace/{number}")
    with listing_at_most(5):
        files.beneath("/workspace")
    with listing_at_most(4), pytest.raises(ManyFiles):
        files.beneath("/workspace")
    files.beneath("/workspace")


class Volume:
    """As much of one as a listing needs."""

    directory = None

    def __init__(self, files):
        self._files = files
        self.threads: list[int] = []

    def beneath(self, path, leave_out):
        found = self._files.beneath(path, leave_out=leave_out)
        self.threads.append(threading.get_ident())
        return found


@pytest.mark.parametrize(("entries", "in_loop"), [(10, True), (300, False)])
def test_many_directories_are_looked_through_beside_the_loop(files, tree, entries, in_loop):
    for number in range(entries):
        (tree / f"workspace/{number}").mkdir()
    volume = Volume(files)
    for _ in range(2):
        assert asyncio.run(KeptSandbox(volume).list("/workspace")) == []
    assert [thread == threading.get_ident() for thread in volume.threads] == [in_loop] * 2
