"""A matplotlib backend that shows figures as results: on `show()`, and at the end of the run what is still open."""

from __future__ import annotations

import builtins
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # see the worker's

NAME = "fumehood_figures"

_publish: Callable[[dict[str, Any]], None] = lambda bundle: None  # noqa: E731, ARG005
_sent: list[Any] = []  # the figures of this run, kept so that none of them comes out twice


def install(publish: Callable[[dict[str, Any]], None]) -> None:
    """Make the backend importable, and the choice of a matplotlib that is loaded already."""
    global _publish
    _publish = publish
    backend = types.ModuleType(NAME)
    backend.__dict__.update(show=show, __getattr__=lambda name: _made(backend, name))
    sys.modules[NAME] = backend
    if "matplotlib" in sys.modules:
        choose(sys.modules["matplotlib"])


def choose(matplotlib: Any) -> None:
    """Our backend, unless the environment names one."""
    if not os.environ.get("MPLBACKEND"):  # which child processes would inherit, so it is not our way to say it
        try:
            matplotlib.rcParams["backend"] = f"module://{NAME}"
        except Exception:
            pass  # a module of the program's own by that name


def _made(backend: types.ModuleType, name: str) -> Any:
    """The classes, when matplotlib asks for them."""
    if name not in ("FigureCanvas", "FigureManager"):
        raise AttributeError(name)
    import importlib

    manager_base = importlib.import_module("matplotlib.backend_bases").FigureManagerBase
    canvas_base = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg

    def show_one(manager: Any) -> None:
        _send([manager])

    def show_all(_class: Any, /, **_options: Any) -> None:
        show()

    manager = type("FigureManager", (manager_base,), {"show": show_one, "pyplot_show": classmethod(show_all)})
    canvas = type("FigureCanvas", (canvas_base,), {"manager_class": manager})
    backend.__dict__.update(FigureCanvas=canvas, FigureManager=manager)
    return backend.__dict__[name]


def show(*_arguments: Any, **_options: Any) -> None:
    """Send out every open figure, in order, and close it."""
    _send(_open())


def begin() -> None:
    """A new run: every figure may come out again."""
    _sent.clear()


def finish(value: Any = None) -> None:
    """The end of a run: what is open and was not seen goes out, but the run's value, which will be shown as such."""
    unseen = []
    for manager in _open():
        if manager.canvas.figure is value or was_sent(manager.canvas.figure):
            _close(manager)
        else:
            unseen.append(manager)
    _send(unseen)


def was_sent(value: Any) -> bool:
    return any(figure is value for figure in _sent)


def forms(value: Any) -> dict[str, Any]:
    """A figure as an image; nothing for what is no figure."""
    module = sys.modules.get("matplotlib.figure")
    if module is None or not isinstance(value, module.Figure):
        return {}
    _sent.append(value)
    return _drawn(value)


def _open() -> list[Any]:
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    return [manager for _, manager in sorted(helpers.Gcf.figs.items())] if helpers is not None else []


def _close(manager: Any) -> None:
    sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(manager)


def _send(managers: list[Any]) -> None:
    failure = None
    for manager in managers:
        figure = manager.canvas.figure
        try:
            _publish({**_drawn(figure), "text/plain": repr(figure)})
        except Exception as error:
            failure = failure or error
        _sent.append(figure)
        _close(manager)
    if failure is not None:
        raise failure


def _drawn(figure: Any) -> dict[str, Any]:
    return {"image/png": _png(figure)} if len(figure.get_children()) > 1 else {}  # the first is its background


def _png(figure: Any) -> str:
    import base64
    import io

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", dpi=figure.dpi)
    return base64.b64encode(buffer.getvalue()).decode()
