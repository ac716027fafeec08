"""What imports find: matplotlib and IPython that show through us, and something like IPython where there is none."""

from __future__ import annotations

import builtins
import os
import sys
import types

from . import figures
from .display import DisplayHandle, clear_output, display

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # see the worker's

_IMAGES = ((b"\x89PNG", "image/png"), (b"\xff\xd8", "image/jpeg"), (b"GIF8", "image/gif"), (b"RIFF", "image/webp"))


def install() -> None:
    """From now on, and what is loaded already."""
    for name in ("IPython.core.display_functions", "IPython.display"):
        if name in sys.modules:
            _show_through_us(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


def _show_through_us(module: types.ModuleType) -> None:
    """IPython without its shell would print what it is to display."""
    vars(module).update(display=display, clear_output=clear_output)


class _Finder:
    """Sees the few imports that concern us; whoever else finds them is asked first."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _WATCHED and name not in _STAND_INS:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                return _watched(spec) if name in _WATCHED else spec
        if name not in _STAND_INS or (name != "IPython" and not _is_stand_in(sys.modules.get("IPython"))):
            return None
        import importlib.machinery

        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:  # noqa: ARG002
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(_STAND_INS[module.__name__])


def _watched(spec: Any) -> Any:
    """The module's own spec, with a word from us as soon as it is loaded."""
    execute: Any = getattr(spec.loader, "exec_module", None)

    def exec_module(module: types.ModuleType) -> None:
        execute(module)
        _WATCHED[spec.name](module)

    if execute is not None:
        spec.loader.exec_module = exec_module
    return spec


def _is_stand_in(module: Any) -> bool:
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _Finder)


class _Shown:
    """Data that says what it is."""

    _mime = ""
    _is_path = False

    def __init__(self, data: Any = None, url: Any = None, filename: Any = None, **_options: Any) -> None:
        if filename is None and self._is_path and isinstance(data, (str, os.PathLike)) and os.path.isfile(data):
            filename = data
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
            if self._mime and isinstance(data, bytes):
                data = data.decode("utf-8", "replace")
        self.data, self.url, self.filename = data, url, filename

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:  # noqa: ARG002
        return {self._mime: self.data} if self._mime and self.data is not None else {}

    def __repr__(self) -> str:
        return f"<IPython.core.display.{type(self).__name__} object>"


class _Image(_Shown):
    _is_path = True

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:  # noqa: ARG002
        if not isinstance(self.data, (bytes, bytearray)):
            return {}
        start = bytes(self.data[:4])
        return {mime: bytes(self.data) for magic, mime in _IMAGES if start.startswith(magic)}


class _JSON(_Shown):
    _mime = "application/json"

    def __init__(self, data: Any = None, url: Any = None, filename: Any = None, **options: Any) -> None:
        super().__init__(data, url, filename, **options)
        if isinstance(self.data, str):
            import json

            self.data = json.loads(self.data)


def _kind(name: str, mime: str, base: type = _Shown, is_path: bool = False) -> type:
    return type(name, (base,), {"_mime": mime, "_is_path": is_path, "__module__": "IPython.core.display"})


_SHOWN: dict[str, Any] = {
    "display": display,
    "clear_output": clear_output,
    "DisplayHandle": DisplayHandle,
    "HTML": _kind("HTML", "text/html"),
    "Markdown": _kind("Markdown", "text/markdown"),
    "SVG": _kind("SVG", "image/svg+xml", is_path=True),
    "Latex": _kind("Latex", "text/latex"),
    "Math": _kind("Math", "text/latex"),
    "JSON": _kind("JSON", "application/json", _JSON),
    "Image": _kind("Image", "", _Image, is_path=True),
    "Javascript": _kind("Javascript", ""),
}
_IPYTHON: dict[str, Any] = {"__version__": "8.0.0", "version_info": (8, 0, 0, ""), "get_ipython": lambda: None}
_STAND_INS: dict[str, dict[str, Any]] = {
    "IPython": _IPYTHON,
    "IPython.display": _SHOWN,
    "IPython.core": {},
    "IPython.core.display": _SHOWN,
    "IPython.core.getipython": {"get_ipython": _IPYTHON["get_ipython"]},
}
_WATCHED = {"matplotlib": figures.choose, "IPython.core.display_functions": _show_through_us}
