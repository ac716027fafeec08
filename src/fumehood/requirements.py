"""What `requirements=` may hold: names with extras, versions and markers, and nothing that names a place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from .errors import BadArgument, PackageError

MAX_REQUIREMENTS = 100
MAX_CHARS = 500

# Possessive: of blanks that several parts could take, every division would be tried. Single characters alone: a group
# that is, and fails, keeps what it has read in Python 3.11 before 3.11.5.
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*+(?<=[A-Za-z0-9])"
_VERSIONS = r"(?:===|==|~=|!=|<=|>=|<|>)\s*+[A-Za-z0-9._*+!-]++"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_NAME})\s*+(?:\[(?P<extras>[A-Za-z0-9._,\s-]*+)\])?\s*+"
    rf"(?P<open>\()?\s*+(?P<versions>{_VERSIONS}(?:\s*+,\s*+{_VERSIONS})*)?\s*+(?(open)\))\s*+(?:;(?P<marker>.*+))?",
    re.ASCII,
)
_TEXT = "[A-Za-z0-9 ._*+!/-]*"
_MARKER = re.compile(rf"\s*([a-z_]+|'{_TEXT}'|\"{_TEXT}\"|===?|~=|!=|<=?|>=?|[()])")
_VALUES = (
    *("python_version", "python_full_version", "os_name", "sys_platform", "platform_release", "platform_system"),
    *("platform_version", "platform_machine", "platform_python_implementation", "implementation_name"),
    *("implementation_version", "extra"),
)
_SHAPES = {**dict.fromkeys(_VALUES, "v"), "and": "c", "or": "c", "not": "n", "(": "(", ")": ")"}
# An installer takes such a name for a file in its working directory.
_ARCHIVES = (".zip", ".whl", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".tlz", ".lz", ".lzma", ".txt")
_ACCEPTED = "accepted is a name with extras, versions and markers, such as 'polars[xlsx]>=1.0; python_version>\"3.10\"'"


class Requirement(NamedTuple):
    """One entry, in the one way to write it."""

    name: str  # normalised
    text: str

    def __str__(self) -> str:
        return self.text


def normalised(name: str) -> str:
    """The name that all spellings of it share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(requirements: Sequence[str]) -> tuple[Requirement, ...]:
    """Sorted, without doubles. Options, addresses and paths are refused: they would choose what comes from where."""
    if isinstance(requirements, (str, bytes)) or not isinstance(requirements, Sequence):
        raise BadArgument(f"requirements must be a list such as ['polars', 'numpy>=2'], not {_shown(requirements)}")
    if not requirements:
        raise BadArgument("requirements is empty: name at least one package, or leave it out")
    if len(requirements) > MAX_REQUIREMENTS:
        raise PackageError(f"{len(requirements)} requirements are more than {MAX_REQUIREMENTS}; name fewer at once")
    return tuple(sorted({_parse(entry) for entry in requirements}))


def check_allowed(requirements: Sequence[Requirement], allowed: Sequence[str]) -> None:
    """Refuse what SANDBOX_ALLOWED_PACKAGES does not list."""
    names = {normalised(name) for name in allowed if name != "*"}
    refused = [] if "*" in allowed else sorted({r.name for r in requirements} - names)
    if refused:
        listed = f"allowed are {', '.join(sorted(names))}" if names else "no package is allowed"
        raise PackageError(
            f"{', '.join(refused)} may not be installed: {listed}. "
            "Do without, or have SANDBOX_ALLOWED_PACKAGES changed by whoever runs this."
        )


def _parse(entry: object) -> Requirement:
    if not isinstance(entry, str):
        raise PackageError(f"{_shown(entry)} is not a requirement: {_ACCEPTED}")
    text = entry.strip(" \t")
    match = _REQUIREMENT.fullmatch(text) if len(text) <= MAX_CHARS and text.isprintable() else None
    if match is None or match["name"].lower().endswith(_ARCHIVES):
        raise PackageError(f"{_shown(entry)} is not a requirement that can be installed ({_why(text)}): {_ACCEPTED}")
    name = normalised(match["name"])
    extras = sorted({normalised(extra.strip()) for extra in (match["extras"] or "").split(",") if extra.strip()})
    versions = sorted({re.sub(r"\s+", "", version) for version in (match["versions"] or "").split(",") if version})
    written = name + (f"[{','.join(extras)}]" if extras else "") + ",".join(versions)
    if match["marker"] is not None:
        written += f"; {_marker(match['marker'], entry)}"
    return Requirement(name, written)


def _marker(text: str, entry: str) -> str:
    tokens, place = [], 0
    while place < len(text.rstrip()) and (match := _MARKER.match(text, place)):
        tokens.append(match[1])
        place = match.end()
    # One letter for each: value, operator, and/or, parenthesis; what can be said about values shrinks to one `e`.
    shape = "".join(_SHAPES.get(token, "o") if token[0] not in "'\"" else "v" for token in tokens).replace("no", "o")
    before = ""
    while shape != before:
        before, shape = shape, re.sub(r"vov|\(e\)|ece", "e", shape)
    if shape != "e" or text[place:].strip():
        raise PackageError(f"{_shown(entry)} has a marker that cannot be read: {_ACCEPTED}")
    return " ".join(tokens)


def _why(text: str) -> str:
    if not text:
        return "it is empty"
    if text.startswith("-"):
        return "options are not taken"
    if "://" in text or "@" in text:
        return "addresses are not taken"
    if "/" in text or "\\" in text or text.startswith(".") or text.lower().endswith(_ARCHIVES):
        return "files and paths are not taken"
    if len(text) > MAX_CHARS:
        return f"it is longer than {MAX_CHARS} characters"
    return "it cannot be read"


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, (str, bytes)) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
