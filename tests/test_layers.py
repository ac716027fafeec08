"""The layers: imports point down, and what is dangerous or slow stays in the file that is named for it."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fumehood

SOURCE = Path(fumehood.__file__).parent

# Bottom first; a module may import from its own row and the rows below. A package stands for all that is in it.
LAYERS = (
    ("guest",),
    ("types", "errors", "descriptors", "in_use", "interrupts", "one_line", "passed_over", "threads", "thread_pool"),
    ("config", "config_files", "config_table", "config_values", "languages"),
    ("engine",),
    ("backends.base",),
    ("backends",),
    ("registry", "arguments", "screen", "redact", "records", "sync", "policy", "offload"),
    (
        "planning",
        "notes",
        "bundles",
        "execution",
        "steps",
        "paths",
        "edits",
        "datasets",
        "budget",
        "copies",
        "fallback",
        "handed",
    ),
    ("requirements", "packages", "installer", "installation", "tells_exit", "wheels_only"),
    ("api", "session", "calls", "lifetime", "streaming", "outputs", "sync_session"),
    ("tools", "bench", "recorded", "replay"),
    ("server",),
    ("cli", "__main__"),
)
ROOT_FACTS = {"__version__"}  # all that anybody may take from the package itself, which loads lazily what is above

READS_ENVIRONMENT = {
    "config": "settings are read in one place",
    "engine.zygote": "sets what programs will find there, in an environment that was empty",
    "cli.terminal": "NO_COLOR, FORCE_COLOR and TERM say what the terminal is; they are no settings",
}
USES_CTYPES = {
    "engine._syscalls",
    "guest.lockdown",  # in a container the guest has nothing of the engine, and locks its programs itself
}
NEVER_AT_IMPORT = {
    *("asyncio", "subprocess", "argparse", "importlib.metadata", "yaml", "ctypes", "ast", "logging", "socket"),
    *("fumehood.api", "fumehood.engine", "fumehood.cli", "fumehood.records"),
}


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
PACKAGES = {".".join(path.parent.relative_to(SOURCE).parts) for path in SOURCE.rglob("__init__.py")}
NAMED = [name for name in MODULES if name]


@functools.cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text("utf-8"), str(MODULES[module]))


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    return tuple(_found_imports(module))


def _found_imports(module: str) -> Iterator[str]:
    """Every import, absolute, also those in functions and for type checking; ours without `fumehood.`, as `.name`."""
    parts = module.split(".") if module else []
    package = parts if module in PACKAGES else parts[:-1]
    for node in ast.walk(_parsed(module)):
        if isinstance(node, ast.Import):
            yield from (_ours(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ["fumehood", *package[: len(package) - (node.level - 1)], *filter(None, [node.module])]
            else:
                base = [node.module or ""]
            yield from (_ours(".".join([*base, alias.name])) for alias in node.names)


def _ours(name: str) -> str:
    """`.backends.base` for `fumehood.backends.base.Process`; what is not ours stays as it is."""
    if name.split(".")[0] != "fumehood":
        return name
    parts = name.split(".")[1:]
    if len(parts) == 1 and parts[0] in ROOT_FACTS:
        return "."
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return "." + (".".join(parts) or "__init__")  # the package itself is above everything


def _layer(module: str) -> int | None:
    names = [".".join(module.split(".")[:count]) for count in range(len(module.split(".")), 0, -1)]
    ranks = {name: rank for rank, row in enumerate(LAYERS) for name in row}
    return next((ranks[name] for name in names if name in ranks), None)


def test_imports_point_down() -> None:
    for module in NAMED:
        own = _layer(module)
        assert own is not None, f"{module} has no layer: give it one in LAYERS"
        for name in _imports(module):
            if name.startswith(".") and name != ".":
                other = _layer(name[1:])
                assert other in range(own + 1), f"{module} imports {name[1:]}, which is above it"


def test_there_is_no_import_cycle() -> None:
    graph = {
        name: {other[1:] for other in _imports(name) if other.startswith(".") and other != "."} - {name}
        for name in NAMED
    }
    for name in NAMED:  # a package's __init__ may import its own modules, which import one another
        if name in PACKAGES:
            graph = {
                n: {o for o in others if not (o == name and n.startswith(name + "."))} for n, others in graph.items()
            }
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_backends_do_not_know_each_other() -> None:
    for module in NAMED:
        own, known = _backend(module), {_backend(name[1:]) for name in _imports(module)}
        if own and own != "base":
            assert known <= {"", "base", own}, f"{module} imports {known - {own}}"


def _backend(module: str) -> str:
    """`local` for `backends.local` and for `backends._local_async`, which is a part of it."""
    name = module.removeprefix("backends.") if module.startswith("backends.") else ""
    return name.removeprefix("_").split("_")[0].split(".")[0]


def _reads_environment(tree: ast.Module) -> bool:
    names = {"environ", "environb", "getenv", "getenvb", "putenv"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os":
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names}:
            return True
    return False


def test_the_environment_is_read_in_one_place() -> None:
    readers = {name for name in NAMED if not name.startswith("guest") and _reads_environment(_parsed(name))}
    assert readers == READS_ENVIRONMENT.keys()


def test_ctypes_is_used_in_one_file() -> None:
    users = {name for name in NAMED if any(found.split(".")[0] in ("ctypes", "_ctypes") for found in _imports(name))}
    assert users <= USES_CTYPES


def test_the_guest_needs_the_standard_library_alone() -> None:
    for module in NAMED:
        if module.startswith("guest"):
            for name in _imports(module):
                ours_inside = name.startswith(".guest")
                assert ours_inside or name.split(".")[0] in sys.stdlib_module_names, f"{module} imports {name}"


def test_only_who_runs_the_guest_knows_it() -> None:
    knowing = {name for name in NAMED if any(found.startswith(".guest") for found in _imports(name))}
    allowed = ("engine", "guest", "backends.docker")
    assert [name for name in sorted(knowing) if not f"{name}.".startswith(tuple(f"{each}." for each in allowed))] == []


def test_argparse_belongs_to_the_command_line() -> None:
    assert [name for name in NAMED if not name.startswith("cli") and "argparse" in _imports(name)] == []


def test_importing_fumehood_loads_nothing_slow() -> None:
    # -S: a site directory's own .pth files may import what they like.
    code = f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); import fumehood; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert "fumehood" in loaded
    assert not loaded & NEVER_AT_IMPORT


def test_the_public_names_are_there() -> None:
    for name in fumehood.__all__:
        assert getattr(fumehood, name) is not None
