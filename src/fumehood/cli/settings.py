"""`fumehood config show`: every setting, its value, and where that came from."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import terminal


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `config show`."""
    parser = subparsers.add_parser("config", help="show the settings in force")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print every setting", description="Print every setting and its value.")
    show.set_defaults(handler=run)
    show.add_argument("--origin", action="store_true", help="also print where each value came from")
    show.add_argument("--env-file", metavar="F", help="read settings from this .env file too")
    show.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from .. import config  # loaded only by the commands that need it

    loaded = config.load(env_file=Path(args.env_file) if args.env_file else None)
    if args.json:
        values = loaded.settings._asdict()
        document = {n: {"value": v, "origin": loaded.origins[n]} for n, v in values.items()} if args.origin else values
        terminal.show(sys.stdout, [terminal.as_json(document)])
        return 0
    rows = config.rows(loaded)
    name_width = max(len(variable) for _, variable, _, _, _ in rows)
    value_width = max(len(value) for _, _, value, _, _ in rows)
    for _, variable, value, origin, _ in rows:
        end = f"{value:{value_width}}  # {origin}" if args.origin else value
        terminal.show(sys.stdout, [terminal.safe(f"{variable:{name_width}} = {end}".rstrip())])
    return 0
