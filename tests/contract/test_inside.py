"""What a program finds around it."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

import pytest
import yaml

from support import HANG_S


def test_nothing_of_the_hosts_environment_is_there(box, monkeypatch):
    monkeypatch.setenv("FUMEHOOD_TEST_SECRET", "do-not-leak")
    found = box(timeout_sec=29).out("import os; print(sorted(os.environ))")
    assert "HOME" in found
    assert "FUMEHOOD_TEST_SECRET" not in found
    assert box.out("import subprocess; print('leak' in subprocess.getoutput('env'))") == "False"


def test_the_working_directory_is_writable_and_empty(box):
    code = """
        import os
        print(sorted(set(os.listdir()) - {"main.py"}))
        os.mkdir("d"); open("d/f", "w").write("x"); print(os.listdir("d"))
    """
    assert box.out(code).splitlines() == ["[]", "['f']"]


def test_the_working_directory_is_gone_afterwards(box):
    directory = box.out("import os; open('left', 'w').close(); os.mkdir('d', 0o000); print(os.getcwd())")
    assert os.path.isabs(directory)
    assert not os.path.exists(f"{directory}/left")


def test_home_and_temporary_directories_are_writable(box):
    code = """
        import os, pathlib, tempfile
        for place in map(pathlib.Path, (pathlib.Path.home(), tempfile.gettempdir(), os.environ["MPLCONFIGDIR"])):
            place.mkdir(parents=True, exist_ok=True); (place / "probe").write_text("x")
        with tempfile.NamedTemporaryFile() as file: print(os.path.exists(file.name))
    """
    assert box.out(code) == "True"


def test_time_is_utc(box):
    assert (
        box.out("import time, datetime as d; print(time.timezone, d.datetime.now().astimezone().utcoffset())")
        == "0 0:00:00"
    )


def test_text_is_utf_8(box):
    code = """
        import locale, sys
        print(sys.stdout.encoding, sys.getfilesystemencoding(), locale.getpreferredencoding(), "é😀")
        open("ü", "w").write("ß"); print(open("ü", "rb").read())
    """
    assert box.out(code).lower() == "utf-8 utf-8 utf-8 é😀\nb'\\xc3\\x9f'"


def test_python_on_the_path_is_the_hosts_interpreter_with_its_packages(box):
    probe = "import json, sys, yaml; print(json.dumps([sys.version, sys.prefix, yaml.__version__]))"
    for name in ("python", "python3"):
        code = f"import subprocess; print(subprocess.check_output(['{name}', '-c', {probe!r}], text=True))"
        assert json.loads(box.out(code)) == [sys.version, sys.prefix, yaml.__version__], name


def test_the_program_itself_runs_in_the_hosts_interpreter_with_its_packages(box):
    code = "import json, sys, yaml; print(json.dumps([sys.version, sys.prefix, sys.executable, yaml.__version__]))"
    assert json.loads(box.out(code)) == [sys.version, sys.prefix, sys.executable, yaml.__version__]


def test_nothing_is_left_of_an_execution_for_the_next(box):
    write = """
        import os, pathlib, tempfile, sys
        sys.modules["left"] = sys
        for place in (".", pathlib.Path.home(), tempfile.gettempdir()): pathlib.Path(place, "left").write_text("x")
    """
    look = """
        import os, pathlib, sys, tempfile
        places = (".", pathlib.Path.home(), tempfile.gettempdir())
        print([os.path.exists(f"{place}/left") for place in places], "left" in sys.modules)
    """
    box.out(write)
    assert box.out(look) == "[False, False, False] False"


def test_no_two_executions_draw_the_same_random_numbers(box):
    code = """
        import os, random, secrets, uuid
        print(random.random(), os.urandom(4).hex(), secrets.token_hex(4), uuid.uuid4())
    """
    assert len({part for _ in range(3) for part in box.out(code).split()}) == 12


def test_open_descriptors_are_the_three_streams_only(box):
    assert (
        box.out("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:3], len(os.listdir('/proc/self/fd')))")
        == "[0, 1, 2] 4"
    )


@pytest.fixture
def host_server():
    """A server on the host's loopback, and what it was sent."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    seen.append(b"connected")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], seen
        server.shutdown(socket.SHUT_RDWR)
        thread.join(HANG_S)


CONNECT = """
    import socket, sys
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=280).close()
        print("connected")
    except OSError:
        print("refused")
"""


def test_the_network_is_off_by_default(box, host_server):
    port, seen = host_server
    assert box.out(CONNECT, args=[str(port)]) == "refused"
    assert seen == []


def test_the_network_is_there_when_asked_for_and_the_receipt_says_so(box, host_server):
    port, _ = host_server
    open_box = box(network=True)
    assert open_box.out(CONNECT, args=[str(port)]) == "connected"
    assert open_box.run("").meta["isolation"]["network"]["level"] == "none"
