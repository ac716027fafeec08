"""`fumehood serve`: programs over HTTP, and a page to try them on."""

from __future__ import annotations

import argparse
import os
import signal
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import BadArgument, ConfigurationError, ExtraMissing, IsolationUnavailable
from ..execution import hold_to
from ..one_line import one_line
from .run import add_sandbox_options, load_settings, open_sandbox
from .serve_options import Source, add_options

if TYPE_CHECKING:
    from ..config import Settings
    from ..server.options import ServerOptions

NEEDED = ("starlette", "uvicorn", "h11", "msgspec", "sse_starlette", "websockets", "prometheus_client")
EPILOG = """The token is made and printed once as the page's address, unless it is given: FUMEHOOD_TOKEN has one,
a --token-file has several with names and quotas and is read again when it changes. Settings of the sandboxes
(SANDBOX_…) are the ceiling of what a request may ask for. SIGHUP reads the options file, the tokens and the certificate
again; SIGINT and SIGTERM stop the server once what runs has ended, or the grace is over."""


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `serve`."""
    parser = subparsers.add_parser("serve", help="serve programs over HTTP", description=__doc__, epilog=EPILOG)
    parser.set_defaults(handler=run)
    add_sandbox_options(parser)
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ExtraMissing(f"serve needs {missing[0]!r}, which is not installed: pip install 'fumehood[server]'")
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: None)  # a reload before there is anything to reload
    _hold_standard_streams()
    from ..server import listening, log, tokens, workers  # heavy, and only this command's
    from ..server import run as running
    from ..server.reload import InForce, Reread

    source, options, made = _source(args)
    tokens.Tokens(options.token, options.token_file)  # says now what is wrong with them
    now = InForce.of(options)
    settings = _checked(options, load_settings(args).settings)
    with listening.listen(options) as listener:
        if not options.unix_socket:
            now.options = options._replace(port=listener.getsockname()[1])

        def ready() -> None:
            log.say(f"fumehood serves at {_shown(now.options, made)}\n")

        reread = Reread(source.read, options, now)
        if options.workers > 1:
            return workers.supervise(reread, settings, listener, ready)
        return running.serve(now, settings, [listener], ready, reread)


def _hold_standard_streams() -> None:
    """One that is closed would be the number of another file, which workers inherit."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _source(args: argparse.Namespace) -> tuple[Source, ServerOptions, str | None]:
    """Where the options come from, what they are, and the token to print, if one was made."""
    from .. import config
    from ..server import tokens

    source = Source(args, config.server_token())
    options = source.read()
    if source.token is not None or options.token_file is not None:
        return source, options, None
    if not options.loopback:
        raise BadArgument(
            f"{options.host} is not loopback: give a token by FUMEHOOD_TOKEN or --token-file, none is made here"
        )
    source.token = tokens.made()
    return source, source.read(), source.token


def _shown(options: ServerOptions, token: str | None) -> str:
    """The address to open, with the token that was made for it."""
    if options.unix_socket:
        return one_line(options.address) + (f", token {token}" if token else "")
    return f"{options.address}/" + (f"#token={token}" if token else "")


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
        asked = settings.isolation not in ("auto", "sealed")
        fix = f"SANDBOX_ISOLATION={settings.isolation} asks for that" if asked else "see `fumehood doctor`"
        fix = next((axis.fix for axis in receipt.axes.values() if axis.fix), fix)
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
