"""Options of `fumehood serve` about the server itself: on the command line, or in a file."""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config_files import read_texts
from ..errors import BadArgument, ConfigurationError, FumehoodError
from ..one_line import printable

if TYPE_CHECKING:
    from ..server.options import ServerOptions

Parse = Callable[[str], Any]
_MIB = 1024 * 1024
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,254}}\Z){_LABEL}(?:\.{_LABEL})*\.?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(?:%[\w.-]+)?", re.ASCII)
_OF_SANDBOXES = {
    "backend": "SANDBOX_TYPE",
    "isolation": "SANDBOX_ISOLATION",
    "require": "SANDBOX_REQUIRE",
    "env-file": "the command line",
}


class Option(NamedTuple):
    """One option; in a file its name is the key."""

    name: str
    metavar: str
    parse: Parse | None  # None: given or not
    help: str
    repeats: bool = False

    @property
    def dest(self) -> str:
        return self.name.replace("-", "_")


def _count(least: int, most: int = 2**31) -> Parse:
    wanted = f"from {least} to {most}" if most < 2**31 else f"from {least} up"

    def count(text: str) -> int:
        if not (re.fullmatch(r"[0-9]{1,10}", text) and least <= int(text) <= most):
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


def _network(text: str) -> str:
    try:
        return text if text == "unix" else str(ipaddress.ip_network(text))
    except ValueError:
        pass
    try:
        whole = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no address, no network such as 10.0.0.0/8, nor unix") from None
    raise argparse.ArgumentTypeError(f"{text!r} is an address within a network: write {whole}")


def _host(text: str) -> str:
    """As sockets take it: in a URL an IPv6 address has brackets, and may have them here."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if _is_ipv6(bare) or (bare == text and _NAME.fullmatch(text)):
        return bare
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither an address of this machine, such as 127.0.0.1 or ::1, nor its name; the port is --port"
    )


def _is_ipv6(text: str) -> bool:
    try:
        return _IPV6.fullmatch(text) is not None and ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _host_name(text: str) -> str:
    named = re.fullmatch(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?", text, re.ASCII)
    if text != "*" and (named is None or int(named[1] or 0) > 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a host as a request names it: NAME or NAME:PORT")
    return text


def _mode(text: str) -> int:
    if not re.fullmatch(r"0?o?[0-7]{3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a mode of three octal digits, such as 660")
    return int(text[-3:], 8)


def _path(text: str) -> str:
    try:
        shown = os.fsencode(text).decode("utf-8", "replace")  # a name may have any bytes
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        shown = ""
    if not shown or not printable(shown):
        raise argparse.ArgumentTypeError(f"{text!r} is not a path")
    return text


_TRUSTED = "a proxy's address or network, or unix: not bounded by that, and its X-Forwarded-For names the client"
OPTIONS = (
    Option("host", "H", _host, "address to listen at; default 127.0.0.1"),
    Option("port", "P", _count(0, 65535), "default 8080; 0 = any free one"),
    Option("unix-socket", "PATH", _path, "listen at a Unix socket, in place of --host and --port"),
    Option("socket-mode", "MODE", _mode, "who may connect to that; default 600"),
    Option("tls-cert", "F", _path, "certificate, with its chain, in PEM: serve https"),
    Option("tls-key", "F", _path, "its key, in PEM"),
    Option("token-file", "F", _path, "a token, or entries of name, token or sha256, and quotas"),
    Option("allow-host", "NAME[:PORT]", _host_name, "also answer to this name; * = any; may be repeated", repeats=True),
    Option("allow-weak", "", None, "listen beyond loopback although programs run at a level weaker than sealed"),
    Option("workers", "N", _count(1), "processes; default 1"),
    Option("max-running", "N", _count(1), "executions at a time, of each worker; default 2 for each core, at least 4"),
    Option("max-queue", "N", _count(0), "executions that may wait, of each worker; default 1024"),
    Option("max-sessions", "N", _count(0), "sessions at a time, of each worker; default 64"),
    Option("max-connections", "N", _count(1), "connections at a time, of each worker; default 2048"),
    Option("max-unauthenticated", "N", _count(1), "connections of one address without a token; default 64, 10 s each"),
    Option("trusted-proxy", "ADDRESS", _network, _TRUSTED, repeats=True),
    Option("max-body-memory", "MB", _count(64), "for bodies of requests, of each worker; default 256"),
    Option(
        "client-timeout", "S", _seconds, "seconds to send headers (10), to send a body (60), to read an answer (30)"
    ),
    Option("grace", "S", _seconds, "seconds for what runs after SIGTERM; default 10"),
    Option("instance", "NAME", str, "part of its sessions' ids, such as the pod's name"),
)
_BY_NAME = {option.name: option for option in OPTIONS}


def add_options(parser: argparse.ArgumentParser) -> None:
    """All of them, and the file that may have them; those not given are None."""
    given = "YAML of such options, which those given here replace"
    parser.add_argument("--options-file", metavar="F", type=_path, help=given)
    for option in OPTIONS:
        if option.parse is None:
            parser.add_argument(f"--{option.name}", action="store_true", default=None, help=option.help)
        else:
            parser.add_argument(
                f"--{option.name}",
                metavar=option.metavar,
                type=option.parse,
                action="append" if option.repeats else "store",
                help=option.help,
            )


class Source:
    """Where the options come from: the command line, before a file that may change."""

    def __init__(self, args: argparse.Namespace, token: str | None) -> None:
        self._given = {option.dest: getattr(args, option.dest) for option in OPTIONS}
        self.token = token
        self._file: str | None = args.options_file

    def read(self) -> ServerOptions:
        """The options as they are now."""
        from ..server import ids  # heavy, and only this command's
        from ..server.options import ServerOptions

        found = in_file(self._file) if self._file is not None else {}
        found |= {name: value for name, value in self._given.items() if value is not None}
        try:
            _check(found)
            instance = ids.checked(found["instance"]) if "instance" in found else None
        except BadArgument as error:
            raise self._error(str(error)) from None
        body_memory = found.get("max_body_memory")
        values: dict[str, Any] = {
            **{name: found.get(name) for name in ServerOptions._fields},
            **{f"{what}_timeout_s": found.get("client_timeout") for what in ("header", "body", "write")},
            "allowed_hosts": tuple(found["allow_host"]) if "allow_host" in found else None,
            "trusted_proxies": tuple(found["trusted_proxy"]) if "trusted_proxy" in found else None,
            "max_bodies_bytes": body_memory and body_memory * _MIB,
            "grace_s": found.get("grace"),
            "instance": instance,
            "token": self.token,
        }
        return ServerOptions(**{name: value for name, value in values.items() if value is not None})

    def _error(self, text: str) -> FumehoodError:
        """Of the command line alone, or of what a file says too."""
        return BadArgument(text) if self._file is None else ConfigurationError(f"{text} (see {self._file} too)")


def _check(found: dict[str, Any]) -> None:
    """What two of them say together."""
    if ("tls_cert" in found) != ("tls_key" in found):
        missing = "--tls-key" if "tls_cert" in found else "--tls-cert"
        raise BadArgument(f"{missing} is missing: TLS needs a certificate and its key")
    if "unix_socket" in found and (others := [f"--{name}" for name in ("host", "port", "tls_cert") if name in found]):
        raise BadArgument(
            f"{others[0].replace('_', '-')} is for a port, and --unix-socket is in place of one: leave one out"
        )
    if "socket_mode" in found and "unix_socket" not in found:
        raise BadArgument("--socket-mode is for --unix-socket, which is missing")
    if "unix" in found.get("trusted_proxy", ()) and "unix_socket" not in found:
        raise BadArgument("--trusted-proxy unix is for --unix-socket, which is missing")


def in_file(path: str) -> dict[str, Any]:
    """What the file says, by field; a ConfigurationError names the key."""
    found: dict[str, Any] = {}
    for key, value in read_texts(path, "The options file").items():
        option = _BY_NAME.get(str(key))
        if option is None:
            raise ConfigurationError(f"{path}: {_unknown(str(key))}")
        try:
            found[option.dest] = _parsed(option, value)
        except argparse.ArgumentTypeError as error:
            raise ConfigurationError(f"{path}: {option.name}: {error}") from None
    return found


def _unknown(key: str) -> str:
    if key in _OF_SANDBOXES:
        return f"{key!r} is about the sandboxes, not the server: it comes from {_OF_SANDBOXES[key]}"
    close = difflib.get_close_matches(key.replace("_", "-").lstrip("-"), _BY_NAME, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ", see `fumehood serve --help`"
    return f"{key[:60]!r} is no option of fumehood serve{hint}"


def _parsed(option: Option, value: object) -> Any:
    if isinstance(value, list) and not option.repeats:
        raise argparse.ArgumentTypeError("it has one value")
    parse = option.parse or _is_true
    parsed = [parse(_text(each)) for each in (value if isinstance(value, list) else [value])]
    return parsed if option.repeats else parsed[0]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise argparse.ArgumentTypeError("its value is one text or number")
    if not value:
        raise argparse.ArgumentTypeError("it has no value: give it one, or take the line out")
    return value


def _is_true(text: str) -> bool | None:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError("it is true or false")
    return text.lower() == "true" or None
