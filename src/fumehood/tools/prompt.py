"""The system prompt: `system_prompt.md` with the numbers, paths and libraries that hold here.

A line `<<name>>` begins a part that stands only if `name` is so, and `<<end>>` ends it.
"""

from __future__ import annotations

from collections.abc import Set
from importlib import resources
from string import Template

from .facts import Facts

_EXAMPLE_NEEDS = {"polars", "scikit-learn", "matplotlib"}


def system_prompt(facts: Facts) -> str:
    """What to tell a model about the sandbox before it starts."""
    template = resources.files(__package__).joinpath("system_prompt.md").read_text("utf-8")
    so = set(facts.libraries)
    if so >= _EXAMPLE_NEEDS:
        so.add("example")
    if facts.network is False:
        so.add("offline")
    places = facts.places
    return Template(_parts(template, so)).substitute(
        tmp=places.tmp,
        workspace=places.workspace,
        data=places.data,
        datasets="".join(f"\n  - `{path}`" for path in facts.datasets),
        output=places.output,
        timeout=f"{facts.exec_timeout_s:g}",
        max_timeout=f"{facts.settings.max_timeout_sec:g}",
    )


def _parts(template: str, so: Set[str]) -> str:
    kept, shown = [], True
    for line in template.splitlines(keepends=True):
        if line.startswith("<<"):
            name = line.strip().strip("<>")
            shown = name == "end" or name in so
        elif shown:
            kept.append(line)
    return "".join(kept)
