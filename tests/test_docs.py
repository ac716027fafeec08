"""The documentation moves with the code: its examples are run, and what it names must exist."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import threading
import tokenize
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from fumehood import IsolationUnavailable, config, errors, get_sandbox
from fumehood.cli import main as command
from fumehood.cli import run as command_run
from fumehood.engine import diagnose
from fumehood.types import AXES, LEVELS, Reason
from support import HANG_S

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TEXT = {page.relative_to(ROOT).as_posix(): page.read_text("utf-8") for page in PAGES}

# Commands that are shown and not run here, by how they begin.
NOT_RUN = {
    "fumehood show 019d": "the id is made up",
    "fumehood verify --expect": "the hash is made up",
    "fumehood replay 9f2c": "the id is made up",
    "fumehood bench": "it takes minutes",
    "scripts/": "they set up an environment of their own",
    "pip ": "needs the network",
    "sudo ": "needs root",
    "systemd-run ": "needs systemd",
}
LIBRARIES = ("matplotlib", "polars", "sklearn")  # that programs in examples may use; not every environment has them
MISSPELLED = {"SANDBOX_TIMOUT_SEC"}  # on purpose, to show the message


class Block(NamedTuple):
    page: str
    line: int
    kind: str
    text: str
    printed: str | None  # of a python block: the text block right behind it

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def _blocks() -> Iterator[Block]:
    fence = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for page, text in TEXT.items():
        found = list(fence.finditer(text))
        for match, following in zip_longest(found, found[1:]):
            behind = following and following[1] == "text" and not text[match.end() : following.start()].strip()
            printed = following[2] if following and behind else None
            yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2], printed)


BLOCKS = list(_blocks())


def _of(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind]


@pytest.fixture(scope="module")
def sealed() -> None:
    try:
        get_sandbox(require="sealed", store_code="never").check()
    except IsolationUnavailable as missing:
        pytest.skip(f"the examples are of a host that can give level sealed: {missing}")


# ---- examples


class Example(ast.NodeTransformer):
    """Turns `expression  # literal` into a check that the one equals the other."""

    def __init__(self, source: str) -> None:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        self.comments = {token.start[0]: token.string[1:].strip() for token in tokens if token.type == tokenize.COMMENT}
        self.checks = 0

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        try:
            wanted = ast.parse(self.comments[node.end_lineno or 0], mode="eval").body
            ast.literal_eval(wanted)
        except (KeyError, SyntaxError, ValueError):
            return node
        self.checks += 1
        check = ast.Call(ast.Name("check", ast.Load()), [node.value, wanted, ast.Constant(node.lineno)], [])
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(check), node))


def _check(found: object, wanted: object, line: int) -> None:
    assert found == wanted, f"line {line} of the example"


@pytest.mark.parametrize("block", _of("python"), ids=str)
@pytest.mark.usefixtures("sealed")
def test_python_examples_run_and_give_what_their_comments_say(
    block: Block, open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(open_path))  # they do not tidy up
    missing = [name for name in LIBRARIES if f"import {name}" in block.text and find_spec(name) is None]
    if missing:
        pytest.skip(f"its program imports what is not installed here: {', '.join(missing)}")
    code = compile(Example(block.text).visit(ast.parse(block.text)), str(block), "exec")
    before = os.umask(0o022)  # as most readers have it: what others may not read is copied, not lent
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, {"check": _check, "__name__": "example"})
    finally:
        os.umask(before)
    if block.printed is not None:
        assert printed.getvalue().strip() == block.printed.strip()


def test_the_first_example_of_the_readme_is_checked_and_not_only_run() -> None:
    example = Example(_of("python")[0].text)
    example.visit(ast.parse(_of("python")[0].text))
    assert _of("python")[0].page == "README.md"
    assert example.checks >= 4


def _commands(block: Block) -> list[tuple[str, str]]:
    """Each command of a session and the output that is shown for it."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            said, shown = found[-1]
            found[-1] = (said, f"{shown}{line}\n")
    return found


def _reason_not_to_run(said: str) -> str | None:
    return next((reason for start, reason in NOT_RUN.items() if said.startswith(start)), None)


def _comparable(text: str) -> str:
    """Without what differs from run to run, and without alignment."""
    text = re.sub(r"\b[0-9a-f]{16,}\b", "<hex>", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+Z)?", "<time>", text)
    text = re.sub(r"\b\d+\.\d{2,}\b", "<seconds>", text)
    return "\n".join(re.sub(r"\s+", " ", line).strip() for line in text.strip().splitlines())


def _fits(output: str, shown: str) -> bool:
    """`...` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in _comparable(shown).split("..."))
    return re.fullmatch(pattern, _comparable(output), re.DOTALL) is not None


@pytest.mark.parametrize("block", _of("console"), ids=str)
@pytest.mark.usefixtures("sealed")
def test_console_examples_print_what_is_shown(block: Block) -> None:
    here = os.path.dirname(sys.executable)
    if not os.access(f"{here}/fumehood", os.X_OK):
        pytest.skip(f"the command fumehood is not installed beside {sys.executable}")
    commands = [(said, shown) for said, shown in _commands(block) if _reason_not_to_run(said) is None]
    if not commands:
        pytest.skip("; ".join(filter(None, (_reason_not_to_run(said) for said, _ in _commands(block)))))
    # One shell for the whole session, so that `echo $?` means what a reader thinks.
    script = "".join(f"{said}\nlast=$?; printf '\\036%d\\036' $last; (exit $last)\n" for said, _ in commands)
    environment = {**os.environ, "PATH": f"{here}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
    script = f"umask 022\n{script}"
    done = subprocess.run(
        ["bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        timeout=HANG_S,
        check=False,
    )
    parts = done.stdout.decode().split("\036")
    for (said, shown), output, status in zip(commands, parts[::2], parts[1::2], strict=False):
        if shown:
            assert _fits(output, shown), f"$ {said}\nprints\n{output}\nand not\n{shown}"
        else:
            assert status == "0", f"$ {said}\nends with {status}:\n{output}"
    assert len(parts) == 2 * len(commands) + 1


def test_a_wrong_output_is_noticed() -> None:
    assert _fits("a  1\nb 2.345 s\n", "a 1\n... s")
    assert not _fits("a 1\nb 2\n", "a 1")
    assert not _fits("a 1\n", "a 2")


# How to bring about each reason of the table in errors.md.
REASONS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "error": ({}, {}, "1 / 0"),
    "timeout": ({}, {"timeout": 1}, "while True: pass"),
    "signal": ({}, {}, "import os; os.kill(os.getpid(), 11)"),
    "memory": ({"memory_mb": 128}, {}, "bytearray(2**29); import time; time.sleep(3600)"),
    "processes": ({"processes": 5}, {}, "import os\nwhile True: os.fork() or __import__('time').sleep(3600)"),
    "disk": ({"disk_mb": 5}, {}, "open('big', 'wb').write(bytes(10**7))"),
    "output": ({"output_kill_mb": 1}, {}, "print('x' * 10**7); import time; time.sleep(3600)"),
    "blocked_import": ({"block_dangerous_imports": True}, {}, "import os"),
    "cancelled": ({}, {"cancel": "set"}, "import time; time.sleep(3600)"),
}


def _rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    below = TEXT[page].split(f"\n## {heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table[0].splitlines()[2:]]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.usefixtures("sealed")
def test_the_examples_of_reasons_are_what_a_result_says(reason: str) -> None:
    row = next(row for row in _rows("docs/errors.md", "Reasons") if row[0] == f"`{reason}`")
    settings, arguments, code = REASONS[reason]
    if "cancel" in arguments:
        arguments = {"cancel": threading.Event()}
        arguments["cancel"].set()
    result = get_sandbox(store_code="never", timeout_sec=HANG_S, **settings).execute(code, **arguments)
    assert result.meta["reason"] == reason
    assert row[-1].strip("`") in result.stderr.splitlines()
    if row[1].lstrip("-").isdigit():
        assert result.exit_code == int(row[1])


# ---- names


@pytest.mark.parametrize("page", TEXT)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", re.sub(r"```.*?```", "", TEXT[page], flags=re.DOTALL))
    for link in filter(None, (first or second for first, second in links)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{link} does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, link


@pytest.mark.parametrize("page", TEXT)
def test_settings_that_are_named_exist(page: str) -> None:
    named = set(re.findall(r"\bSANDBOX_[A-Z_]*[A-Z]\b", TEXT[page]))
    assert named - MISSPELLED <= {field.env_name for field in config.FIELDS}


def test_the_limits_of_the_readme_are_the_defaults() -> None:
    checked = set()
    for row in _rows("README.md", "Limits"):
        names = re.findall(r"SANDBOX_(\w+)", row[2])
        defaults = [config.DEFAULTS[name.lower()] for name in names]
        assert [int(number) for number in re.findall(r"\d+", row[1])] == [value for value in defaults if value], row
        checked |= set(names)
    assert len(checked) == 11


def test_every_error_class_is_documented_and_none_other() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert {row[0].strip("`") for row in _rows("docs/errors.md", "Errors")} == classes


def test_every_reason_is_documented_and_none_other() -> None:
    assert [row[0].strip("`") for row in _rows("docs/errors.md", "Reasons")] == list(get_args(Reason))


def test_the_exit_codes_are_those_of_the_command() -> None:
    codes = {command.USAGE, command.BAD_CONFIGURATION, command.ENGINE_FAILED}
    codes |= {command_run.TIMED_OUT, command_run.REFUSED, command_run.NOT_FOUND}
    documented = {row[0] for row in _rows("docs/errors.md", "Exit codes of the command")}
    assert documented == {*map(str, codes), "128+n"}


def test_every_axis_and_level_is_documented() -> None:
    assert {row[0].strip("`") for row in _rows("docs/isolation.md", "The receipt")} == {"level", *AXES}
    assert {row[0].strip("`") for row in _rows("SECURITY.md", "What each level enforces")} == set(AXES)
    assert all(f"`{level}`" in TEXT["README.md"] for level in LEVELS)


@pytest.mark.parametrize(
    ("step", "number", "flags", "in_container"),
    [
        ("namespaces", 1, {"apparmor_restrict_unprivileged_userns": "1"}, False),
        ("namespaces", 1, {}, True),
        ("namespaces", 1, {"unprivileged_userns_clone": "0"}, False),
        ("namespaces", 1, {}, False),
        ("namespaces", 28, {}, False),
        ("root_proc", 1, {}, False),
        ("open_trees", 38, {}, False),
        ("landlock", 0, {}, False),
    ],
)
def test_the_table_of_refusals_has_the_fixes_that_doctor_names(
    step: str, number: int, flags: dict[str, str], in_container: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose, "_flag", lambda path: flags.get(path.rpartition("/")[2], ""))
    monkeypatch.setattr(diagnose, "_CONTAINER_MARKS", ("/",) if in_container else ())
    rows = [row for row in _rows("docs/isolation.md", "What a host may refuse") if f"`{step}`" in row[2]]
    assert any(diagnose.fix_for(step, number) in row[-1] for row in rows)


def test_the_picture_is_sound_and_follows_the_reader_s_colours() -> None:
    picture = (ROOT / "docs" / "overview.svg").read_text("utf-8")
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert "prefers-color-scheme: dark" in picture
