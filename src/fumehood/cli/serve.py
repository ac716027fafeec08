"""`fumehood serve`: programs over HTTP, and a page to try them on."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import BadArgument, ConfigurationError, ExtraMissing, IsolationUnavailable
from ..execution import hold_to
from . import terminal
from .run import add_sandbox_options, load_settings, open_sandbox

if TYPE_CHECKING:
    from ..config import Settings
    from ..server.options import ServerOptions

PORT = 8080
NEEDED = ("starlette", "uvicorn", "msgspec", "sse_starlette", "websockets", "prometheus_client")
EPILOG = """The token is made and printed once as the page's address, unless it is given: FUMEHOOD_TOKEN has one,
a --token-file has several with names and quotas and is read again when it changes. Settings of the sandboxes
(SANDBOX_…) are the ceiling of what a request may ask for."""


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `serve`."""
    parser = subparsers.add_parser("serve", help="serve programs over HTTP", description=__doc__, epilog=EPILOG)
    parser.set_defaults(handler=run)
    add_sandbox_options(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen at; default 127.0.0.1")
    parser.add_argument(
        "--port", default=PORT, type=_count(0, 65535), metavar="P", help=f"default {PORT}; 0 = any free one"
    )
    parser.add_argument("--token-file", metavar="F", help="a token, or entries of name, token or sha256, and quotas")
    parser.add_argument(
        "--allow-host",
        metavar="NAME[:PORT]",
        type=_host_name,
        action="append",
        default=[],
        help="serve this Host too; * = any",
    )
    parser.add_argument("--allow-weak", action="store_true", help="not loopback, although the level is not sealed")
    parser.add_argument("--workers", type=_count(1), default=1, metavar="N", help="processes; default 1")
    parser.add_argument("--max-running", type=_count(1), metavar="N", help="executions at a time, of each worker")
    parser.add_argument("--max-queue", type=_count(0), metavar="N", help="executions that may wait, of each worker")
    parser.add_argument("--max-sessions", type=_count(0), metavar="N", help="sessions at a time, of each worker")
    parser.add_argument("--max-connections", type=_count(1), metavar="N", help="connections at a time, of each worker")
    parser.add_argument(
        "--max-body-memory", type=_count(64), metavar="MB", help="for bodies of requests, of each worker; default 256"
    )
    parser.add_argument(
        "--client-timeout",
        type=_seconds,
        metavar="S",
        help="for headers, a body, or what it is sent; default 10, 60, 30",
    )
    parser.add_argument("--grace", type=_seconds, metavar="S", help="seconds for what runs after SIGTERM; default 10")
    parser.add_argument("--instance", metavar="NAME", help="part of its sessions' ids, such as the pod's name")


def run(args: argparse.Namespace) -> int:
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ExtraMissing(f"serve needs {missing[0]!r}, which is not installed: pip install 'fumehood[server]'")
    from ..server import run as running  # heavy, and only this command's
    from ..server import workers

    options, shown = _options(args)
    settings = load_settings(args).settings
    settings = _checked(options, settings)
    try:
        listening = running.listen(options.host, options.port)
    except OSError as error:
        raise BadArgument(f"cannot listen at {options.host}:{options.port}: {error}; try another --port") from None
    options = options._replace(port=listening.getsockname()[1])

    def ready() -> None:
        host = f"[{options.host}]" if ":" in options.host else options.host
        secret = f"#token={shown}" if shown else ""
        terminal.write(sys.stdout, f"fumehood serves at http://{host}:{options.port}/{secret}\n")
        sys.stdout.flush()

    with listening:
        if options.workers > 1:
            return workers.supervise(options, settings, listening, ready)
        return running.serve(options, settings, [listening], ready)


def _options(args: argparse.Namespace) -> tuple[ServerOptions, str | None]:
    """What the server is told, and the token to print, if one was made."""
    from .. import config
    from ..server import ids, tokens
    from ..server.options import ServerOptions

    given, made = config.server_token(), None
    if given is None and args.token_file is None:
        if not ServerOptions(host=args.host).loopback:
            raise BadArgument(
                f"{args.host} is not loopback: give a token by FUMEHOOD_TOKEN or --token-file, none is made here"
            )
        given = made = tokens.made()
    named = {
        "max_running": args.max_running,
        "max_queue": args.max_queue,
        "max_sessions": args.max_sessions,
        "max_connections": args.max_connections,
        "max_bodies_bytes": args.max_body_memory and args.max_body_memory * 1024 * 1024,
        **dict.fromkeys(("header_timeout_s", "body_timeout_s", "write_timeout_s"), args.client_timeout),
        "grace_s": args.grace,
        "instance": ids.checked(args.instance) if args.instance is not None else None,
    }
    options = ServerOptions(
        host=args.host,
        port=args.port,
        allowed_hosts=tuple(args.allow_host),
        token=given,
        token_file=args.token_file,
        allow_weak=args.allow_weak,
        workers=args.workers,
        **{name: value for name, value in named.items() if value is not None},
    )
    tokens.Tokens(options.token, options.token_file)  # says now what is wrong with them
    return options, made


def _checked(options: ServerOptions, settings: Settings) -> Settings:
    """A backend that is unknown or not set up is told now, not to the first client.

    Beyond loopback it must be sealed, in every later call too.
    """
    sandbox = open_sandbox(settings)  # which starts nothing yet
    if options.loopback or options.allow_weak:
        return settings
    with sandbox:
        receipt = sandbox.check()
    if receipt.level != "sealed":
        fix = next((axis.fix for axis in receipt.axes.values() if axis.fix), "see `fumehood doctor`")
        raise ConfigurationError(
            f"{options.host} is not loopback and programs would run at level {receipt.level}: {fix}; --allow-weak takes"
            " that upon you"
        )
    try:
        hold_to("sealed", receipt)
    except IsolationUnavailable as refused:
        raise ConfigurationError(
            f"{options.host} is not loopback: {refused}; --allow-weak takes that upon you"
        ) from None
    return settings._replace(require="sealed")


def _count(least: int, most: int = 2**31) -> Callable[[str], int]:
    wanted = f"from {least} to {most}" if most < 2**31 else f"from {least} up"

    def count(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {wanted}")
        return int(text)

    return count


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds greater than 0")
    return value


def _host_name(text: str) -> str:
    if text != "*" and not re.fullmatch(r"([\w.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a host as a request names it: NAME or NAME:PORT")
    return text
