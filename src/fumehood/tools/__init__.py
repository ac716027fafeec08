"""What a model sees: the tools, their table, and the toolbox that binds them to one session."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .table import ToolCategory
    from .text import NO_OUTPUT, render, run_code, run_python_code
    from .toolbox import Toolbox

__all__ = ["NO_OUTPUT", "ToolCategory", "Toolbox", "render", "run_code", "run_python_code"]

_HOME = {"ToolCategory": "table", "Toolbox": "toolbox"}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: a session needs asyncio, and the text tools do not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOME.get(name, 'text')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
