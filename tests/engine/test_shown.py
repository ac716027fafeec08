"""What a program left behind, read from its cell: nothing leads out of it, and nothing outlives it."""

from __future__ import annotations

import os

import pytest
from process_view import descriptors, opened_since

from fumehood.engine.engine import Engine, shared
from fumehood.errors import FileError, IsolationUnavailable
from fumehood.types import Command, Exited, Limits
from harness.attacks import BY_DESCRIPTORS, THREE_PIPES
from support import HANG_S, wait_until

LIMITS = Limits(memory_bytes=256 << 20, processes=64, disk_bytes=16 << 20, inodes=512)
OUT = "import os\nout = os.environ['TMPDIR'] + '/output/'\n"


@pytest.fixture(params=["sealed", "confined", "process"])
def engine(request) -> Engine:
    engine = shared(request.param, None)
    try:
        engine.check(LIMITS, network=False)
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    return engine


@pytest.fixture
def ran(engine):
    cells = []

    def run(code: str, warm_cells: int = 0):
        command = Command(("python", "main.py"), (OUT + code).encode())
        cell = engine.start(command, LIMITS, network=False, warm_cells=warm_cells, shows=True)
        cells.append(cell)
        event = cell.read(HANG_S)
        assert isinstance(event, Exited), event
        cell.end()
        return cell, event

    yield run
    for cell in cells:
        cell.close()
    engine.lease(LIMITS, network=False, step=0, shows=True)


def listed(cell) -> dict[str, int]:
    place = f"{cell.directory or ''}/tmp/output"
    return {stat.path.removeprefix(f"{place}/"): stat.size for stat in cell.files().beneath(place) if not stat.why}


def told(cell) -> dict[str, str]:
    place = f"{cell.directory or ''}/tmp/output"
    return {stat.path.removeprefix(place): stat.why for stat in cell.files().beneath(place) if stat.why}


def read(cell, name: str, most: int = 1 << 20) -> bytes:
    return cell.files().read(f"{cell.directory or ''}/tmp/output/{name}", most)


def test_what_a_program_wrote_is_read_after_its_end(ran):
    cell, event = ran("open(out + 'a', 'w').write('text')\nos.mkdir(out + 'd')\nopen(out + 'd/b', 'wb').write(b'\\0')")
    assert event.exit_code == 0
    assert listed(cell) == {"a": 4, "d/b": 1}
    assert read(cell, "a") == b"text"
    assert read(cell, "d/b") == b"\0"


def test_it_is_read_as_well_from_a_cell_that_waited(ran, engine):
    for number in range(4):
        cell, _ = ran(f"open(out + 'a', 'w').write('{number}')", warm_cells=2)
        assert read(cell, "a") == str(number).encode()
        assert listed(cell) == {"a": 1}
        cell.close()  # from then on the pool is filled
        pool = engine._roots[False]._pools.get((LIMITS, True))  # at level sealed alone
        assert pool is None or wait_until(lambda pool=pool: len(pool) == 2)


def test_a_program_that_left_nothing_has_none(ran):
    cell, _ = ran("")
    assert listed(cell) == {}


@pytest.mark.attack(
    BY_DESCRIPTORS,
    without="nothing to escape from: a plain open takes any kind",
)
def test_what_is_no_regular_file_is_neither_listed_nor_read(ran):
    cell, event = ran(
        "os.symlink('/etc/passwd', out + 'link')\n"
        "os.symlink('/etc', out + 'dir')\n"
        "os.mkfifo(out + 'pipe')\n"
        "import socket; s = socket.socket(socket.AF_UNIX); os.chdir(out); s.bind('sock')\n"
        "try: os.mknod('disk', 0o60600, os.makedev(8, 0))\n"
        "except OSError: pass\n"
    )
    assert event.exit_code == 0
    assert listed(cell) == {}
    link = "a symbolic link, which is never followed"
    expected = {"/link": link, "/dir": link, "/pipe": "a named pipe", "/sock": "a socket"}
    assert expected.items() <= told(cell).items()
    for name in ("link", "dir/passwd", "pipe", "sock", "disk"):
        with pytest.raises(FileError):
            read(cell, name)


@pytest.mark.attack(
    BY_DESCRIPTORS,
    without="nothing to escape from: a plain open follows the link",
)
def test_a_link_in_place_of_the_directory_leads_nowhere(ran):
    cell, event = ran("os.rename(out[:-1], out[:-1] + '2')\nos.symlink('/etc', out[:-1])")
    assert event.exit_code == 0
    assert listed(cell) == {}
    assert told(cell) == {"": "a symbolic link, which is never followed"}
    with pytest.raises(FileError):
        read(cell, "passwd")


def test_a_directory_that_the_program_closed_is_named(ran):
    cell, _ = ran(
        "for name in ('none', 'all'):\n"
        "    os.mkdir(out + name); open(out + name + '/a', 'w')\n"
        "os.chmod(out + 'none', 0)\n"
        "open(out + 'b', 'w')"
    )
    closed = (
        {} if cell.directory is not None and os.getuid() == 0 else {"/none": "a directory that cannot be looked into"}
    )
    assert told(cell) == closed
    assert listed(cell).keys() == {"all/a", "b"} | ({"none/a"} if not closed else set())
    cell, _ = ran("open(out + 'a', 'w'); os.chmod(out, 0)")
    assert bool(told(cell)) == bool(closed)


def test_only_tmp_is_shown(ran):
    cell, _ = ran("")
    for path in ("/etc/passwd", "/tmp/../etc/passwd", "/workspace/main.py", f"{cell.directory or ''}/program/main.py"):
        with pytest.raises(FileError):
            cell.files().read(path, 10)


def test_a_file_past_the_cap_is_not_read(ran):
    cell, _ = ran("open(out + 'large', 'wb').write(bytes(4 << 20))")
    with pytest.raises(FileError) as refusal:
        read(cell, "large", 1 << 20)
    assert refusal.value.kind == "too_large"


@pytest.mark.attack(
    "files are read when all processes are gone", without="the project has no careless reader to compare with"
)
def test_who_goes_on_writing_after_the_end_is_gone_before_anything_is_read(ran):
    cell, event = ran(
        "open(out + 'count', 'w').write('0')\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    number = 0\n"
        "    while True:\n"
        "        number += 1\n"
        "        open(out + 'count', 'w').write(str(number))\n"
        "os._exit(0)\n"
    )
    assert event.exit_code == 0
    before = read(cell, "count")
    later, _ = ran("for number in range(100): open(out + 'count', 'w').write(str(number))")
    assert read(later, "count") == b"99"
    assert read(cell, "count") == before


def test_the_files_of_a_program_that_was_killed_are_there(engine):
    command = Command(("python", "main.py"), (OUT + "open(out + 'a', 'w').write('x')\nwhile True: pass").encode())
    cell = engine.start(command, LIMITS, network=False, shows=True)
    try:
        assert wait_until(lambda: cell.read(0.1) is None and cell.files() and listed(cell).get("a"))
        cell.kill()
        cell.end()
        assert read(cell, "a") == b"x"
    finally:
        cell.close()


@pytest.mark.attack(THREE_PIPES, control="fd01")
def test_the_program_holds_no_descriptor_of_ours(ran):
    cell, event = ran(
        "held = []\n"
        "for number in range(3, 256):\n"
        "    try: os.fstat(number)\n"
        "    except OSError: continue\n"
        "    held.append(number)\n"
        "open(out + 'held', 'w').write(repr(held))"
    )
    assert event.exit_code == 0
    assert read(cell, "held") == b"[]"


@pytest.mark.usefixtures("own_engine")
def test_closing_leaves_neither_descriptor_nor_directory_and_frees_the_group(ran, engine):
    ran("")[0].close()
    before = descriptors()
    groups = engine._roots[False].zygote.groups._groups
    for _ in range(6):
        cell, _ = ran("open(out + 'a', 'wb').write(bytes(1 << 20))")
        assert listed(cell) == {"a": 1 << 20}
        cell.close()
        cell.close()
        assert cell.directory is None or not os.path.exists(cell.directory)
    assert wait_until(lambda: not opened_since(before, descriptors())), opened_since(before, descriptors())
    assert wait_until(lambda: all(group.is_free() for group in groups))


def test_a_group_is_nobody_elses_while_the_files_are_held(ran):
    cell, _ = ran("open(out + 'a', 'wb').write(bytes(8 << 20))")
    group = cell._group
    if group is None:
        pytest.skip("no control groups here")
    assert cell.is_gone(HANG_S)
    assert not group.is_free()
    cell.close()
    assert wait_until(group.is_free)


def test_a_cell_that_does_not_show_has_nothing_to_read(engine):
    code = OUT + "os._exit(7 if os.path.exists(out) else 0)"
    cell = engine.start(Command(("python", "main.py"), code.encode()), LIMITS, network=False)
    try:
        event = cell.read(HANG_S)
        assert isinstance(event, Exited), event
        assert event.exit_code == 0
        assert cell.files() is None
    finally:
        cell.close()
