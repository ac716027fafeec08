"""The import screen: reads a Python program before it runs and names imports that are on a list.

Advice, not a boundary: a program that wants to hide an import can. What holds is the sandbox.
"""

from __future__ import annotations

import ast
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .errors import BadArgument

MAX_CODE_CHARS = 512 * 1024  # a syntax tree can take 900 bytes of host memory per character
# CPython joins a dotted name part by part: an import of 100,000 parts takes tens of gigabytes.
_LONG_CHAIN = re.compile(r"(?:\.[\s\\]*+[^\s\\.()\[\]{},;:'\"#+\-*/@<>=!&|^~%]++[\s\\]*+){50}")
_CODING = re.compile(r"(?:[ \t\f]*(?:#[^\r\n]*)?(?:\r\n?|\n))?[ \t\f]*#[^\r\n]*?coding[:=][ \t]*([-\w.]+)")
_ASCII_LIKE = ("utf-8", "utf8", "utf-8-sig", "ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1", "cp1252")
_MAX_NAMED = 10
_MAX_STATEMENT = 100

ALTERNATIVES = {
    "os": "pathlib for files and paths; the program's arguments and standard input for what it needs from outside",
    "subprocess": "a Python library that does the same work, or a program in bash where that language is allowed",
    "shutil": "pathlib to move, copy (read_bytes, write_bytes) and delete files",
    "socket": "data passed in with the call, as files or standard input; there is no network unless it is switched on",
    "sys": "print() and input() for text, a plain return for an early end",
    "ctypes": "a Python library, or numpy for work on raw memory",
    "multiprocessing": "a plain loop, or vectorised numpy",
    "threading": "a plain loop, or vectorised numpy",
    "pickle": "json for data",
    "marshal": "json for data",
    "importlib": "a plain import statement",
    "requests": "data passed in with the call, as files or standard input",
    "urllib": "data passed in with the call, as files or standard input",
    "http": "data passed in with the call, as files or standard input",
    "tempfile": "plain file names: the working directory is private to this run",
    "pty": "the Python library that does the same work",
    "signal": "the timeout of the call",
}
_GENERAL = "a module that is not on the list, or data passed in with the call"

_warnings_lock = threading.Lock()
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One import of a listed module."""

    module: str  # as it stands on the list
    line: int
    statement: str
    alternative: str


def find(code: str, blocked: Sequence[str]) -> list[Finding]:
    """Imports of `blocked` modules, in order. Code that cannot be parsed has none: running it will say why."""
    # Every form we look for has this word in it, unless other letters stand for it.
    if code.isascii() and "import" not in code:
        return []
    _refuse_unreadable(code)
    tree = _parse(code)
    if tree is None:
        return []
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom, ast.Call))]
    names = _Importers(nodes)
    findings = []
    for node in nodes:
        for candidates, statement in _imports(node, names):
            entry = next((entry for name in candidates for entry in blocked if _covers(entry, name)), None)
            if entry is not None:
                findings.append(Finding(entry, node.lineno, _cut(statement), alternative(entry)))
    return sorted(findings, key=lambda finding: finding.line)


def alternative(module: str) -> str:
    """What to use instead of a module."""
    return ALTERNATIVES.get(module) or ALTERNATIVES.get(module.partition(".")[0], _GENERAL)


def message(findings: Sequence[Finding]) -> str:
    """What to tell whoever wrote the program, and the log."""
    lines = ["Not run: the program imports modules that are blocked here."]
    lines += [
        f"  line {f.line}: {f.statement} - {f.module} is blocked; use {f.alternative}." for f in findings[:_MAX_NAMED]
    ]
    if len(findings) > _MAX_NAMED:
        lines.append(f"  and {len(findings) - _MAX_NAMED} more.")
    lines.append(
        "This check is advice, not a boundary: the sandbox isolates with or without it. It is set by "
        "SANDBOX_BLOCK_DANGEROUS_IMPORTS and the list SANDBOX_DANGEROUS_IMPORTS."
    )
    return "\n".join(lines)


class _Importers:
    """The names under which this program knows importlib, builtins and their import functions, in any scope."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self.modules = {"__builtins__"}
        self.functions = {"__import__"}
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in ("importlib", "builtins"):
                        self.modules.add(alias.asname or alias.name)
                    elif alias.name.startswith("importlib.") and alias.asname is None:
                        self.modules.add("importlib")
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module in ("importlib", "builtins"):
                for alias in node.names:
                    if alias.name in ("import_module", "__import__"):
                        self.functions.add(alias.asname or alias.name)
                    elif alias.name == "*":
                        self.functions.add("import_module")

    def called(self, function: ast.expr) -> str | None:
        if isinstance(function, ast.Name) and function.id in self.functions:
            return function.id
        if (
            isinstance(function, ast.Attribute)
            and function.attr in ("import_module", "__import__")
            and isinstance(function.value, ast.Name)
            and function.value.id in self.modules
        ):
            return f"{function.value.id}.{function.attr}"
        return None


def _imports(node: ast.AST, names: _Importers) -> Iterator[tuple[tuple[str, ...], str]]:
    """The modules an import could load, and how it reads."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.name,), f"import {_as(alias)}"
    elif isinstance(node, ast.ImportFrom):
        if node.level == 0 and node.module:
            for alias in node.names:
                yield (node.module, f"{node.module}.{alias.name}"), f"from {node.module} import {_as(alias)}"
    elif isinstance(node, ast.Call):
        function = names.called(node.func)
        given = node.args[:1] + [keyword.value for keyword in node.keywords if keyword.arg == "name"]
        if function is not None and given and isinstance(given[0], ast.Constant):
            module = given[0].value
            if isinstance(module, str):  # a relative one starts with a dot and is on no list
                yield (module,), f"{function}({module[:_MAX_STATEMENT]!r})"


def _as(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def _covers(entry: str, name: str) -> bool:
    return name == entry or name.startswith(entry + ".")


def _cut(statement: str) -> str:
    return statement if len(statement) <= _MAX_STATEMENT else statement[: _MAX_STATEMENT - 3] + "..."


def _refuse_unreadable(code: str) -> None:
    """The parser runs in the host: keep from it what makes it take memory or time without bound."""
    if len(code) > MAX_CODE_CHARS:
        why = f"is longer than {MAX_CODE_CHARS:,} characters, and its syntax tree would take too much memory"
    elif _LONG_CHAIN.search(code):
        why = "has a dotted name of more than 50 parts, which the parser needs too much memory for"
    elif (coding := _CODING.match(code)) and coding[1].lower().replace("_", "-") not in _ASCII_LIKE:
        why = f"says that it is encoded in {coding[1][:40]}, and only UTF-8 is read here"
    else:
        return
    raise BadArgument(
        f"Not run: the program {why}, so the import screen cannot read it. Change that, or switch the screen off "
        "with SANDBOX_BLOCK_DANGEROUS_IMPORTS=false."
    )


def _parse(code: str) -> ast.Module | None:
    # The program's syntax warnings are not the host's. The filters are global: one at a time.
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(_TRIES):
            try:
                return ast.parse(code, "<program>")
            except SystemError:  # Python 3.11, where another thread parses too; a traceback is enough
                continue
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                break
        return None
