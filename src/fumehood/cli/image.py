"""`fumehood image`: whether the runner image is there and fits; `fumehood image build` makes it."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import terminal
from .run import pairs

if TYPE_CHECKING:
    from ..backends.docker import image as images
    from ..config import Settings

_MISSING = 1
_TICK_S = 1.0
_QUIET_S = 15.0  # between two signs of life where lines cannot be written over
_WIDTH = 100
_EPILOG = (
    "exit code: 0 it is there and fits; 1 it is missing or does not; 2 usage; 78 bad configuration; 125 no engine."
)
_BUILD_EPILOG = """exit code: 0 it was built; 2 usage; 78 bad configuration; 125 no engine, or the build failed.
Without a registry: fumehood image build --base IMAGE --wheelhouse DIRECTORY, where the image has python3 in it
and the directory has the wheels of all libraries, and of pip."""


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `image` and `image build`."""
    parser = subparsers.add_parser(
        "image",
        help="show or build the image of the docker backend",
        description="Say whether the image that containers are made of is there, and fits this version of fumehood.",
        epilog=_EPILOG,
    )
    _add_common(parser)
    parser.set_defaults(handler=show)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    build = actions.add_parser(
        "build",
        help="make it",
        description="Build it with the Docker engine; the docker command is not needed.",
        epilog=_BUILD_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_common(build)
    build.add_argument("--base", metavar="IMAGE", help="what it is built on; the Dockerfile names a Python image")
    build.add_argument("--wheelhouse", metavar="D", type=Path, help="install the libraries from this directory alone")
    build.add_argument("--requirements", metavar="F", type=Path, help="other libraries than the usual ones")
    build.add_argument("--build-arg", metavar="K=V", action="append", default=[], help="for the Dockerfile")
    build.add_argument("--no-cache", action="store_true", help="repeat the steps of earlier builds")
    build.set_defaults(handler=run_build)


def _add_common(parser: argparse.ArgumentParser) -> None:
    suppressed = argparse.SUPPRESS  # so that `image build` does not undo what stands before `build`
    parser.add_argument("--tag", metavar="NAME", default=suppressed, help="its name (DOCKER_IMAGE)")
    parser.add_argument("--env-file", metavar="F", default=suppressed, help="read settings from this .env file too")
    parser.add_argument("--json", action="store_true", default=suppressed, help="print JSON")


def show(args: argparse.Namespace) -> int:
    import asyncio

    settings, tag = _settings(args)
    found = asyncio.run(_images().look(settings, tag))
    if getattr(args, "json", False):
        terminal.show(sys.stdout, [terminal.as_json(_document(tag, found))])
    else:
        terminal.show(
            sys.stdout,
            _page(tag, found, terminal.Style.for_stream(sys.stdout), is_default=tag == settings.docker_image),
        )
    return 0 if found is not None and found.problem is None else _MISSING


def run_build(args: argparse.Namespace) -> int:
    import asyncio

    settings, tag = _settings(args)
    arguments = pairs("--build-arg", args.build_arg)
    if args.base is not None:
        arguments["BASE"] = args.base
    images = _images()
    options = images.Options(tag, arguments, args.wheelhouse, args.requirements, args.no_cache)
    started = time.monotonic()
    found = asyncio.run(_followed(images.build, settings, options))
    if getattr(args, "json", False):
        terminal.show(sys.stdout, [terminal.as_json(_document(tag, found))])
    else:
        built = f"built {tag}: {_megabytes(found)} MB in {time.monotonic() - started:.0f} s, {_short(found)}"
        terminal.show(sys.stdout, [terminal.safe(built)])
    return 0


async def _followed(build: Any, settings: Settings, options: images.Options) -> images.Found:
    import asyncio

    progress = Progress()

    async def tick() -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            progress.tick()

    ticking = asyncio.create_task(tick())
    try:
        found: images.Found = await build(settings, options, progress.hear)
        return found
    finally:
        ticking.cancel()
        progress.end()


class Progress:
    """On standard error: one line that is written over at a terminal, a line for each step elsewhere."""

    def __init__(self) -> None:
        self._writes_over = terminal.is_terminal(sys.stderr) and terminal.Style.for_stream(sys.stderr).enabled
        self._step, self._detail = "sending the files", ""
        self._began = self._told = time.monotonic()

    def hear(self, said: images.Step | str) -> None:
        if isinstance(said, str):
            self._detail = said
            return
        self._step, self._detail = f"step {said.number}/{said.total}: {said.instruction}", ""
        self._began = self._told = time.monotonic()
        if self._writes_over:
            self.tick()
        else:
            terminal.show(sys.stderr, [_cut(self._step)])

    def tick(self) -> None:
        now = time.monotonic()
        if self._writes_over:
            seconds = f"{now - self._began:3.0f} s  "
            terminal.write_over(sys.stderr, _cut(f"{seconds}{self._step}  {self._detail}"))
        elif now - self._told >= _QUIET_S:
            self._told = now
            terminal.show(sys.stderr, [f"  … {now - self._began:.0f} s"])

    def end(self) -> None:
        if self._writes_over:
            terminal.write_over(sys.stderr, "")


def _settings(args: argparse.Namespace) -> tuple[Settings, str]:
    from .. import config  # loaded only by the commands that need it

    env_file = getattr(args, "env_file", None)
    settings = config.load(env_file=Path(env_file) if env_file else None).settings
    return settings, getattr(args, "tag", None) or settings.docker_image


def _images() -> Any:
    from .. import registry

    registry.factory("docker")  # says what to install where the extra is missing
    from ..backends.docker import image

    return image


def _document(tag: str, found: images.Found | None) -> dict[str, Any]:
    if found is None:
        return {"image": tag, "id": None, "fits": False, "problem": "it is not there", "is_current": False}
    return {
        "image": tag,
        "id": found.identity,
        "size_bytes": found.size_bytes,
        "created": found.created,
        "version": found.version,
        "protocol": found.protocol,
        "fits": found.problem is None,
        "problem": found.problem,
        "is_current": found.is_current,
    }


def _page(tag: str, found: images.Found | None, style: terminal.Style, *, is_default: bool) -> list[str]:
    from .. import __version__

    build = "fumehood image build" if is_default else f"fumehood image build --tag {shlex.quote(tag)}"
    do = f"  do:       {style(build, 'cyan')}"
    if found is None:
        return [f"{style(tag, 'bold')} {style('is not there', 'red', 'bold')}", do]
    lines = [
        f"{style(tag, 'bold')} {style('is there', 'green')}",
        f"  id:       {style(_short(found))}",
        f"  size:     {_megabytes(found)} MB",
        f"  age:      {style(_age(found.created))}",
    ]
    if found.problem is not None:
        return [*lines, f"  {style('does not fit:', 'red', 'bold')} {style(found.problem)}", do]
    lines.append(f"  version:  {style(f'{found.version}, protocol {found.protocol}')}")
    if found.is_current:
        return [*lines, f"  fits:     {style(f'yes, it is of this fumehood {__version__}', 'green')}"]
    return [*lines, "  fits:     yes; its sources or its libraries are others than this installation's", do]


def _short(found: images.Found) -> str:
    return found.identity.removeprefix("sha256:")[:12]


def _megabytes(found: images.Found) -> int:
    return round(found.size_bytes / 1e6)


def _age(created: str) -> str:
    try:  # Docker says nanoseconds, of which Python 3.11 knows six digits
        made = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", created))
        seconds = (datetime.now(UTC) - made).total_seconds()
    except (ValueError, TypeError):
        return created or "not known"
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} seconds"


def _cut(text: str) -> str:
    """One line, safe to show."""
    line = " ".join(terminal.safe(text).split("\n"))
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
