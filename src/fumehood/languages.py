"""The languages a program may be in, as a table. Whether the interpreter is there is the backend's matter."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from .errors import BadArgument, LanguageNotAllowed


class Language(NamedTuple):
    """One language: what runs it and the file its program text is put in."""

    name: str
    program: str
    filename: str
    aliases: tuple[str, ...] = ()

    def command(self, code: bytes, args: Sequence[str] = ()) -> tuple[tuple[str, ...], bytes]:
        """The argument vector and the script of `types.Command`."""
        return (self.program, self.filename, *args), code


LANGUAGES = (
    Language("python", "python", "main.py", ("py",)),
    Language("javascript", "node", "main.js", ("js", "node")),
    Language("bash", "bash", "main.sh", ("sh",)),
)
NAMES = tuple(language.name for language in LANGUAGES)
_BY_NAME = {name: language for language in LANGUAGES for name in (language.name, *language.aliases)}


def lookup(name: str) -> Language | None:
    """The language of that name or alias, whatever its case."""
    return _BY_NAME.get(name.strip().lower())


def resolve(name: str, allowed: Sequence[str]) -> Language:
    """The language to run, if it is known and on the allow-list."""
    if not isinstance(name, str):
        raise BadArgument(f"language must be a name such as 'python', not {type(name).__name__}")
    resolved = _known if type(name) is str else _resolve
    return resolved(name, tuple(allowed))


def _resolve(name: str, allowed: tuple[str, ...]) -> Language:
    language = lookup(name)
    if language is None:
        shown = repr(name[:40])
        raise LanguageNotAllowed(
            f"No language is called {shown}. Known: {', '.join(NAMES)}; allowed here: {_listed(allowed)} "
            "(SANDBOX_SUPPORTED_LANGUAGES)."
        )
    if not any(lookup(entry) is language for entry in allowed):
        wanted = ",".join([*allowed, language.name])
        raise LanguageNotAllowed(
            f"The language {language.name} is not allowed; allowed here: {_listed(allowed)}. "
            f"To allow it, set SANDBOX_SUPPORTED_LANGUAGES={wanted}."
        )
    return language


_known = functools.lru_cache(maxsize=16)(_resolve)


def _listed(allowed: Sequence[str]) -> str:
    return ", ".join(allowed) or "none"
