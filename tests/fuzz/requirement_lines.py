"""Requirements that a model or a client names: only what names no place gets to an installer."""

from __future__ import annotations

from fumehood import requirements
from fumehood.errors import BadArgument, PackageError

from .target import Target, text


def check(data: bytes) -> None:
    entries = text(data).split("\n")
    for entry in entries:
        try:
            (found,) = requirements.parse([entry])
        except (PackageError, BadArgument):
            continue
        assert requirements.parse([found.text]) == (found,)
        assert found.name == requirements.normalised(found.name)
        assert found.text.isprintable()
        assert found.text[0].isalnum()
        assert "://" not in found.text.partition(";")[0]
        assert not set("/\\@") & set(found.text.partition(";")[0])
        assert not found.name.endswith((".whl", ".zip", ".gz"))
    try:
        requirements.check_allowed(requirements.parse(entries), ["numpy", entries[0]])
    except (PackageError, BadArgument):
        pass


TARGET = Target("requirement_lines", check)
