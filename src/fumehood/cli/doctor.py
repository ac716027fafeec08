"""`fumehood doctor`: what this host can enforce, why not more, and what to do about it."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import FumehoodError, IsolationUnavailable
from ..languages import LANGUAGES, lookup
from . import terminal
from .run import add_sandbox_options, load_settings, open_sandbox

if TYPE_CHECKING:
    from ..config import Settings

COLOUR = {"sealed": "green", "confined": "yellow", "process": "red", "none": "red"}
EXPLAINED = {
    "sealed": "its own root, network, processes and kernel call filter",
    "confined": "filtered and limited, without namespaces of its own",
    "process": "an ordinary process with limits; not for code you do not trust",
}
EPILOG = "exit code: 0 the level is sealed; 1 it is weaker, or nothing can run; 78 bad configuration."


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor`."""
    parser = subparsers.add_parser("doctor", help="show what this host can enforce", description=__doc__, epilog=EPILOG)
    parser.set_defaults(handler=run)
    add_sandbox_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    report = examine(args)
    if args.json:
        terminal.show(sys.stdout, [terminal.as_json(report)])
    else:
        terminal.show(sys.stdout, _page(report, terminal.Style.for_stream(sys.stdout)))
    return 0 if report["level"] == "sealed" else 1


def examine(args: argparse.Namespace) -> dict[str, Any]:
    """Everything doctor knows, as plain data."""
    settings = load_settings(args).settings
    level, axes, error, fallback = None, {}, None, None
    try:
        with open_sandbox(settings) as sandbox:
            found = sandbox.check()
        axes, fallback = found.as_dict(), found.fallback
        level = axes.pop("level")
    except FumehoodError as caught:
        error = {"type": type(caught).__name__, "message": str(caught)}
        if isinstance(caught, IsolationUnavailable):
            error |= {k: v for k in ("step", "errno", "fix") if (v := getattr(caught, k)) is not None}
    return {
        "fumehood": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "user": "root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
        "backend": settings.type,
        "fallback": fallback,
        "isolation": settings.isolation,
        "require": settings.require,
        "level": level,
        "axes": axes,
        "error": error,
        "languages": _languages(settings, is_local="local" in (settings.type, (fallback or {}).get("to"))),
        "records": _records(settings),
        "import_screen": settings.block_dangerous_imports,
        "warnings": _warnings(settings),
    }


def _languages(settings: Settings, *, is_local: bool) -> list[dict[str, Any]]:
    allowed = {found.name for name in settings.supported_languages if (found := lookup(name))}
    rows = []
    for language in LANGUAGES:
        path = sys.executable if language.name == "python" else shutil.which(language.program)
        if not is_local:
            path = f"{language.program}, if {settings.type} has it"
        row = {"name": language.name, "allowed": language.name in allowed, "program": language.program, "path": path}
        rows.append(row)
    return rows


def _records(settings: Settings) -> dict[str, Any]:
    from ..steps import absolute  # what that loads, opening a sandbox has loaded

    directory = Path(absolute(settings.artifacts_dir), "executions")
    there = next((path for path in (directory, *directory.parents) if path.exists()), directory)
    return {
        "directory": str(directory),
        "policy": settings.store_code,
        "writable": directory.is_absolute() and there.is_dir() and os.access(there, os.W_OK | os.X_OK),
    }


def _warnings(settings: Settings) -> list[str]:
    warnings = []
    if not settings.block_dangerous_imports:
        names = ", ".join(settings.dangerous_imports)
        warnings.append(
            f"The import screen is off: programs may import {names}. SANDBOX_BLOCK_DANGEROUS_IMPORTS=true turns it on. "
            "It is advice to a well-meaning model, not a boundary; the isolation level is the boundary."
        )
    if settings.network:
        warnings.append("The network is on for every program (SANDBOX_NETWORK). Unset it to close the network.")
    if settings.fallback is not None:
        bound = "" if settings.require else ", at whatever level that gives: SANDBOX_REQUIRE sets a bound"
        warnings.append(
            f"When {settings.type} cannot be had, programs run on {settings.fallback} (SANDBOX_FALLBACK){bound}."
        )
    if settings.require is None:
        warnings.append("SANDBOX_REQUIRE is not set: a host that can only give a weaker level would still run code.")
    return warnings


def _page(report: dict[str, Any], style: terminal.Style) -> list[str]:
    lines = [
        style(f"fumehood {report['fumehood']}", "bold")
        + style(f"   Python {report['python']} ({report['executable']})", "dim"),
        style(f"{report['system']} {report['kernel']} {report['machine']}, {report['user']}", "dim"),
        "",
        *_level(report, style),
        "",
        style("Languages", "bold"),
    ]
    for row in report["languages"]:
        state = "allowed" if row["allowed"] else "not allowed"
        colour = ("green" if row["path"] else "red") if row["allowed"] else "dim"
        where = row["path"] or f"{row['program']} is not installed"
        lines.append(f"  {style(row['name'].ljust(11), 'bold')} {style(state.ljust(12), colour)} {style(where)}")
    if not all(row["allowed"] for row in report["languages"]):
        lines.append(style("  Allow more with SANDBOX_SUPPORTED_LANGUAGES=python,javascript,bash", "dim"))
    records = report["records"]
    lines += ["", style("Records", "bold"), f"  {style(records['directory'])}, kept: {style(records['policy'])}"]
    if not os.path.isabs(records["directory"]):
        what = "  The working directory was deleted; set SANDBOX_ARTIFACTS_DIR to an absolute path."
        lines.append(style(what, "yellow"))
    elif not records["writable"]:
        lines.append(style("  This directory cannot be written; set SANDBOX_ARTIFACTS_DIR to one that can.", "yellow"))
    if report["warnings"]:
        lines += ["", style("Worth knowing", "bold")]
        lines += [f"  {style('!', 'yellow')} {style(warning)}" for warning in report["warnings"]]
    return lines


def _level(report: dict[str, Any], style: terminal.Style) -> list[str]:
    error = report["error"]
    if error is not None:
        lines = [f"{style('Nothing can run:', 'red', 'bold')} {style(error['message'])}"]
        lines += [f"  {name}: {style(error[name])}" for name in ("step", "errno", "fix") if name in error]
        return lines
    level = report["level"]
    fallback, lines = report["fallback"], []
    if fallback is not None:
        why = f"Backend {fallback['from']} cannot be had:"
        lines = [f"{style(why, 'yellow', 'bold')} {style(fallback['reason'])}"]
    name = report["backend"] if fallback is None else f"{fallback['to']} (SANDBOX_FALLBACK)"
    given = f"Backend {style(name, 'bold')} gives level {style(level, COLOUR[level], 'bold')}"
    lines += [f"{given}: {EXPLAINED[level]}.", ""]
    told: set[str] = set()
    for name, axis in report["axes"].items():
        lines.append(
            f"  {style(name.ljust(11), 'bold')} {style(axis['level'].ljust(9), COLOUR[axis['level']])} "
            f"{style(axis['mechanism'])}"
        )
        if "step" in axis or "errno" in axis:
            why = " failed: ".join(axis[key] for key in ("step", "errno") if key in axis)
            lines.append(f"{'':24}{style('why: ' + why, 'dim')}")
        if "fix" in axis and axis["fix"] not in told:
            lines.append(f"{'':24}{style('do:  ' + axis['fix'], 'cyan')}")
            told.add(axis["fix"])
    return lines
