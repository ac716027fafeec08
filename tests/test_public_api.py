from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import fumehood
from fumehood import (
    BackendUnavailable,
    BadArgument,
    ConfigurationError,
    LanguageNotAllowed,
    OneShot,
    errors,
    get_sandbox,
    interrupts,
    sync,
)
from fumehood.backends.fake import FakeBackend, Reply
from fumehood.sync import Portal, portal
from support import HANG_S, AsyncOnly, scripted, wait_until


def test_all_names_what_is_public_and_each_name_is_there():
    assert sorted(fumehood.__all__) == [
        "AsyncSession",
        "BackendError",
        "BackendUnavailable",
        "BadArgument",
        "BudgetExceeded",
        "CodeSandbox",
        "CommandNotAllowed",
        "ConfigurationError",
        "EngineFailed",
        "ExecutionResult",
        "ExtraMissing",
        "FileError",
        "FumehoodError",
        "IsolationUnavailable",
        "LanguageError",
        "LanguageNotAllowed",
        "OneShot",
        "PackageError",
        "RecordsError",
        "RuntimeMissing",
        "SandboxLost",
        "Session",
        "SessionBusy",
        "SessionEnded",
        "SessionError",
        "UnknownBackend",
        "__version__",
        "get_sandbox",
        "open_session",
        "run_code",
        "run_python_code",
    ]
    for name in fumehood.__all__:
        assert getattr(fumehood, name) is not None
        assert name in dir(fumehood)


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        fumehood.no_such_name  # noqa: B018


def test_every_error_is_public_and_under_one_root():
    found = [value for value in vars(errors).values() if inspect.isclass(value) and value.__module__ == errors.__name__]
    assert {error.__name__ for error in found} <= set(fumehood.__all__)
    assert all(issubclass(error, fumehood.FumehoodError) for error in found)


def test_open_session_is_the_function_whatever_was_imported_before():
    program = (
        "import fumehood.tools.toolbox, fumehood.cli.main; from fumehood import open_session; open_session('fake')"
    )
    subprocess.run([sys.executable, "-c", program], timeout=HANG_S, check=True)


def test_importing_and_even_running_directly_needs_no_heavy_module():
    program = """
import sys, fumehood
heavy = {"asyncio", "subprocess", "importlib.metadata", "yaml", "argparse", "ctypes"}
print(sorted(heavy & set(sys.modules)))
fumehood.get_sandbox, fumehood.run_code
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=HANG_S, check=True
    )
    assert done.stdout == "[]\n[]\n"


def test_the_async_method_takes_what_the_synchronous_one_takes():
    direct, other = inspect.signature(OneShot.execute), inspect.signature(OneShot.execute_async)
    assert list(direct.parameters.items()) == list(other.parameters.items())
    assert direct.return_annotation == other.return_annotation


def test_a_session_takes_what_is_documented():
    wanted = ["type", "require", "datasets", "session_id", "requirements", "io_handler", "run_id", "settings"]
    assert list(inspect.signature(fumehood.open_session).parameters) == wanted
    assert list(inspect.signature(fumehood.AsyncSession).parameters) == wanted


def test_the_synchronous_session_has_every_name_of_the_other_and_takes_the_same():
    def public(kind):
        return {name: value for name, value in vars(kind).items() if not name.startswith("_")}

    plain, other = public(fumehood.Session), public(fumehood.AsyncSession)
    attributes = {"session_id", "origins"}  # plain attributes there
    assert plain.keys() == other.keys() | attributes
    for name in other:
        if isinstance(other[name], property):
            assert isinstance(plain[name], property)
            assert plain[name].__doc__ == other[name].__doc__
        else:
            theirs, ours = inspect.signature(other[name]), inspect.signature(plain[name])
            assert list(theirs.parameters.values()) == list(ours.parameters.values()), name
            assert name == "stream" or theirs.return_annotation == ours.return_annotation, name


def test_the_signatures_are_the_documented_ones():
    assert list(inspect.signature(get_sandbox).parameters) == ["type", "require", "settings"]
    assert str(inspect.signature(fumehood.run_python_code)).startswith("(code: 'str', timeout: 'float | None' = None)")
    assert list(inspect.signature(fumehood.run_code).parameters) == ["code", "language", "timeout"]


def test_meta_has_every_documented_key():
    meta = get_sandbox("fake").execute("x").meta
    documented = "runtime truncated timed_out blocked_imports resource_limits reason isolation usage execution_id"
    ours = {"timeout", "timeout_clamped", "stdout_truncated", "stderr_truncated"}
    assert set(documented.split()) | ours == set(meta)
    assert meta["runtime"] == "fake"
    json.dumps(meta)


BAD = [
    ({"code": None}, "code must be a str"),
    ({"code": b"x"}, "code must be a str"),
    ({"code": "a\ud800"}, "code .*character 1 is a lone surrogate"),
    ({"language": None}, "language"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": -1}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
    ({"timeout": "5"}, "timeout"),
    ({"stdin": 5}, "stdin must be str or bytes"),
    ({"stdin": "\ud800"}, "stdin .*lone surrogate"),
    ({"args": "abc"}, "args must be a list of str"),
    ({"args": 5}, "args must be a list of str"),
    ({"args": [b"x"]}, r"args\[0\] must be a str"),
    ({"args": ["ok", "a\0b"]}, r"args\[1\] must not contain NUL"),
    ({"args": ["x" * 131_072]}, r"args\[0\] is longer"),
    ({"args": ["x" * 100_000] * 11}, "args is longer"),
    ({"env": ["A=1"]}, "env must be a mapping"),
    ({"env": {"": "x"}}, "env: a name"),
    ({"env": {"A=B": "x"}}, "env: a name"),
    ({"env": {"A\0": "x"}}, "env: a name"),
    ({"env": {5: "x"}}, "env: a name"),
    ({"env": {"A": 5}}, r"env\['A'\] must be a str"),
    ({"env": {"A": "\0"}}, r"env\['A'\] must not contain NUL"),
    ({"files": ["a"]}, "files must be a mapping"),
    ({"files": {5: b""}}, "files: a name must be a str"),
    ({"files": {"": b""}}, "relative name"),
    ({"files": {"/etc/passwd": b""}}, "relative name"),
    ({"files": {"../up": b""}}, "relative name"),
    ({"files": {"a/../../up": b""}}, "relative name"),
    ({"files": {"a//b": b""}}, "relative name"),
    ({"files": {"a/": b""}}, "relative name"),
    ({"files": {".": b""}}, "relative name"),
    ({"files": {"a\0b": b""}}, "relative name"),
    ({"files": {"\udc80": b""}}, "lone surrogate"),
    ({"files": {"x" * 256: b""}}, "too long"),
    ({"files": {"/".join("x" * 600): b""}}, "too long"),
    ({"files": {"a": b"", "a/b": b""}}, "both a file and a directory"),
    ({"files": {"main.py": b""}}, "the program itself"),
    ({"files": {"a": 5}}, r"files\['a'\] must be str or bytes"),
    ({"files": {"a": bytes(2 * 1024 * 1024)}}, "SANDBOX_FILE_MB"),
    ({"files": {str(n): bytes(1024 * 1024) for n in range(3)}}, "SANDBOX_DISK_MB"),
    ({"files": {str(n): b"" for n in range(64)}}, "SANDBOX_INODES"),
    ({"cancel": True}, "cancel must be a threading.Event"),
]


def test_a_bad_argument_is_refused_by_name_before_anything_runs():
    sandbox, fake = scripted(file_mb=1, disk_mb=2, inodes=64)
    for given, message in BAD:
        with pytest.raises(BadArgument, match=message):
            sandbox.execute(**{"code": "pass", **given})
        with pytest.raises(BadArgument, match=message):
            asyncio.run(sandbox.execute_async(**{"code": "pass", **given}))
        assert fake.commands == [], message


def test_a_name_with_odd_characters_is_fine():
    sandbox, fake = scripted(Reply())
    names = {"a b\\c": "1", "ü/..x": "2", "-rf": "3", "\n": "4"}
    sandbox.execute("pass", files=names)
    assert fake.commands[0].files == {name: text.encode() for name, text in names.items()}


def test_a_language_that_is_not_allowed_names_the_setting():
    with pytest.raises(LanguageNotAllowed, match="SANDBOX_SUPPORTED_LANGUAGES=python,bash"):
        get_sandbox("fake").execute("ls", "bash")


def test_an_unknown_setting_is_an_error():
    with pytest.raises(ConfigurationError, match="timeout_sec"):
        get_sandbox(timeout_secs=5)


def test_a_blocked_import_is_a_result_and_nothing_runs():
    sandbox, fake = scripted(block_dangerous_imports=True, dangerous_imports=["socket"])
    result = sandbox.execute("import json\nimport socket as s")
    assert (result.exit_code, result.meta["reason"]) == (1, "blocked_import")
    assert result.meta["blocked_imports"] == ["socket"]
    assert "socket" in result.stderr
    assert fake.commands == []


def test_the_screen_reads_python_only():
    sandbox, fake = scripted(Reply(), block_dangerous_imports=True, supported_languages=["bash"])
    assert sandbox.execute("import os", "bash").exit_code == 0
    assert len(fake.commands) == 1


def test_a_closed_sandbox_says_so_and_closes_again():
    sandbox = get_sandbox("fake")
    with sandbox:
        sandbox.execute("x")
    sandbox.close()
    with pytest.raises(BackendUnavailable, match="closed"):
        sandbox.execute("x")


def test_closing_ends_what_runs():
    sandbox, _ = scripted(Reply(after_s=60))
    timer = threading.Timer(0.1, sandbox.close)
    timer.start()
    assert sandbox.execute("x").meta["reason"] == "cancelled"
    timer.join()


def test_a_backend_that_was_handed_in_is_left_open():
    closed = []

    class Watched(FakeBackend):
        async def close(self):
            closed.append(True)

    with get_sandbox(Watched()) as sandbox:
        sandbox.execute("x")
    assert closed == []


def test_many_threads_share_one_sandbox():
    with get_sandbox("fake") as sandbox, ThreadPoolExecutor(8) as pool:
        texts = [f"program {number}" for number in range(64)]
        assert [result.stdout for result in pool.map(sandbox.execute, texts)] == texts


@pytest.mark.parametrize("wrap", [lambda fake: fake, AsyncOnly], ids=["direct", "portal"])
def test_the_synchronous_api_works_inside_a_running_event_loop(wrap):
    async def scenario():
        return get_sandbox(wrap(FakeBackend())).execute("hello").stdout

    assert asyncio.run(scenario()) == "hello"


@pytest.mark.parametrize("wrap", [lambda fake: fake, AsyncOnly], ids=["direct", "portal"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_synchronous_api_works_after_a_fork(wrap):
    sandbox = get_sandbox(wrap(FakeBackend()))
    assert sandbox.execute("before").stdout == "before"
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if sandbox.execute("after").stdout == "after" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sandbox.execute("parent").stdout == "parent"


def test_a_fork_gets_a_backend_of_its_own():
    sandbox = get_sandbox("fake")
    before = sandbox._backend
    child = os.fork()
    if child == 0:
        sandbox.execute("x")
        os._exit(0 if sandbox._backend is not before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sandbox._backend is before


def test_the_portal_passes_results_and_errors():
    async def fail():
        raise LookupError("inside")

    async def succeed():
        await asyncio.sleep(0)
        return 5

    assert portal.run(succeed()) == 5
    with pytest.raises(LookupError, match="inside"):
        portal.run(fail())


def test_the_portal_waits_for_as_long_as_it_takes(monkeypatch):
    monkeypatch.setattr(interrupts, "LOOK_S", 0.001)

    async def slow(error: Exception | None) -> int:
        await asyncio.sleep(0.05)
        if error:
            raise error
        return 5

    assert portal.run(slow(None)) == 5
    with pytest.raises(TimeoutError, match="of its own"):
        portal.run(slow(TimeoutError("of its own")))


def test_an_interrupted_wait_lets_the_coroutine_clean_up(monkeypatch):
    monkeypatch.setattr(sync, "_CLEAN_UP_S", HANG_S)
    began, cleaned = threading.Event(), []

    async def work():
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(True)

    main = threading.get_ident()

    def interrupt():
        assert began.wait(HANG_S)
        assert wait_until(lambda: sys._current_frames()[main].f_code.co_name == "wait")
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            portal.run(work())
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert cleaned == [True]


def test_the_portal_does_not_wait_for_itself():
    own = Portal()

    async def nested():
        return own.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="wait for itself"):
        own.run(nested())


def test_a_first_call_without_descriptors_says_so_and_the_next_one_works():
    program = """
import gc, os, resource, sys
from fumehood import EngineFailed, open_session
from fumehood.backends.fake import FakeBackend

session = open_session(FakeBackend(), store_code="never")
limit = max(map(int, os.listdir("/proc/self/fd"))) + 1
resource.setrlimit(resource.RLIMIT_NOFILE, (limit + 9, limit + 9))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
for spare in range(3):  # wherever it fails in the making
    try:
        print("done", session.run("too early"))
    except EngineFailed as error:
        print(error)
    os.close(held.pop())
gc.collect()
for fd in held:
    os.close(fd)
print(session.run("late enough").stdout)
session.close()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
        check=False,
    )
    said = "this process has no descriptors left (Too many open files): close sessions, or raise the limit: ulimit -n"
    *refused, last = done.stdout.splitlines()
    assert (len(refused), last, done.stderr) == (3, "late enough", "")
    assert all(line.startswith(said) for line in refused)


def test_a_program_that_uses_the_portal_ends_by_itself():
    program = "import fumehood; print(fumehood.get_sandbox('fake').check().level)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "process\n", "")


def test_the_shared_sandbox_is_closed_at_exit_without_noise():
    program = "import fumehood; print(fumehood.run_code('a'))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_S,
        check=False,
        env={**os.environ, "SANDBOX_TYPE": "fake"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\n", "")


def test_a_failed_execution_is_recorded_without_its_secrets(tmp_path):
    sandbox, _ = scripted(Reply(stderr="boom", exit_code=1), Reply())
    sandbox.execute("print('x')", env={"API_KEY": "sk-secret-value-1234567890"}, stdin="1234", files={"f": "12"})
    sandbox.execute("fine")
    (path,) = (tmp_path / "artifacts" / "executions").glob("[0-9]*.json")
    record = json.loads(path.read_text("utf-8"))
    assert record["code"] == "print('x')"
    assert record["result"]["exit_code"] == 1
    assert (record["backend"], record["language"], record["step"]) == ("fake", "python", 1)
    assert (record["stdin_bytes"], record["files"]) == (4, {"f": 2})
    assert record["execution_id"] == record["result"]["meta"]["execution_id"]
    assert "secret-value" not in path.read_text("utf-8")


@pytest.mark.parametrize(("policy", "count"), [("always", 2), ("on_error", 1), ("never", 0)])
def test_the_policy_says_what_is_recorded(tmp_path, policy, count):
    sandbox, _ = scripted(Reply(exit_code=1), Reply(), store_code=policy)
    sandbox.execute("bad")
    sandbox.execute("good")
    assert len(list((tmp_path / "artifacts").glob("executions/[0-9]*.json"))) == count


def test_a_directory_that_cannot_be_written_never_fails_an_execution(tmp_path, caplog):
    (tmp_path / "artifacts").write_text("a file is in the way", "utf-8")
    sandbox, _ = scripted(Reply(exit_code=1), Reply(exit_code=1))
    assert sandbox.execute("x").exit_code == 1
    assert sandbox.execute("x").exit_code == 1
    assert caplog.text.count("SANDBOX_ARTIFACTS_DIR") == 1
