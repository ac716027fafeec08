"""What a value looks like: MIME bundles in Jupyter's vocabulary, `display`, and a stand-in for IPython.display."""

from __future__ import annotations

import builtins
import os
import sys
import types

from . import figures
from .wire import BUNDLE_FORMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # see the worker's

_METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
)
TABLE = "application/vnd.dataresource+json"
_ROWS = 100
_COLUMNS = 256
_DEPTH = 50
_NODES = 200_000
_INT_BITS = 1024  # longer ones cannot be read everywhere
_MIME = 100
_PRETTY = 20_000
_WIDTH = 100
_CUT = 1 << 16
_IMAGES = ((b"\x89PNG", "image/png"), (b"\xff\xd8", "image/jpeg"), (b"GIF8", "image/gif"), (b"RIFF", "image/webp"))

_publish: Callable[[dict[str, Any]], None] = lambda bundle: None  # noqa: E731, ARG005
_quote: Callable[[str], str] = repr


def import_ahead() -> None:
    """Load once, before the fork, what every session needs."""
    import base64  # noqa: F401
    import importlib.machinery  # noqa: F401
    import io  # noqa: F401
    import json  # noqa: F401
    import pprint  # noqa: F401


def install(publish: Callable[[dict[str, Any]], None]) -> None:
    """Give the program `display`, and IPython's where there is none; what it shows goes to `publish`."""
    import json.encoder

    global _publish, _quote
    _publish, _quote = publish, json.encoder.encode_basestring
    for name, function in (("display", display), ("clear_output", clear_output)):
        if not hasattr(builtins, name):
            setattr(builtins, name, function)
    sys.meta_path.insert(0, _Finder())


def display(*values: Any, raw: bool = False, display_id: Any = None, **_options: Any) -> Any:
    """Show values now, in the richest forms they have."""
    for value in values:
        _publish({str(mime): _form(form) for mime, form in value.items()} if raw else bundle(value))
    return DisplayHandle() if display_id else None


def clear_output(wait: bool = False) -> None:
    """Nothing: what was shown has been seen."""


class DisplayHandle:
    """What `display(…, display_id=True)` gives; an update is shown anew."""

    def display(self, value: Any, **_options: Any) -> None:
        display(value)

    update = display


def bundle(value: Any) -> dict[str, Any]:
    """A value in the forms that it offers, and always as text."""
    forms: dict[str, Any] = {}
    if not isinstance(value, type):
        for mime, form in _offered(value):
            if isinstance(mime, str) and len(mime) <= _MIME and form is not None and len(forms) < BUNDLE_FORMS - 1:
                forms[mime] = _form(form)
    if not isinstance(forms.get("text/plain"), str):
        forms["text/plain"] = _text(value)
    return forms


def _offered(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for function in (figures.forms, _table, _mimebundle):
        try:
            found += function(value).items()
        except Exception:
            pass
    known = {mime for mime, _ in found}
    for name, mime in _METHODS:
        if mime not in known:
            try:
                form = _asked(value, name)
            except Exception:
                continue
            found.append((mime, form[0] if type(form) is tuple and form else form))
    return found


def _asked(value: Any, name: str, **arguments: Any) -> Any:
    method = getattr(type(value), name, None)  # of the type: who answers to every name is not taken at its word
    return method(value, **arguments) if callable(method) else None


def _mimebundle(value: Any) -> dict[Any, Any]:
    found = _asked(value, "_repr_mimebundle_", include=None, exclude=None)
    found = found[0] if isinstance(found, tuple) and found else found
    return found if isinstance(found, dict) else {}


def _form(form: Any) -> Any:
    if isinstance(form, (bytes, bytearray)):
        import base64

        return base64.b64encode(form).decode()
    return plain(form)


def _text(value: Any) -> str:
    try:
        text = str.__str__(repr(value))
    except Exception as error:
        return f"<{type(value).__name__} object whose repr() raised {type(error).__name__}>"
    if type(value) in (dict, list, tuple, set, frozenset) and _WIDTH < len(text) < _PRETTY:
        try:
            import pprint

            return pprint.pformat(value, width=_WIDTH, compact=True, sort_dicts=False)
        except Exception:
            pass
    return text


# --- tables


def _table(value: Any) -> dict[str, Any]:
    for kind in type(value).__mro__:
        family = kind.__module__.partition(".")[0] if isinstance(kind.__module__, str) else ""
        if kind.__name__ == "DataFrame" and family in _FRAMES:
            names, types_, rows, total = _FRAMES[family](value)
            names = _distinct(names)
            fields = [{"name": name, "type": type_} for name, type_ in zip(names, types_, strict=False)]
            data = [dict(zip(names, row, strict=False)) for row in rows]
            return {TABLE: {"schema": {"fields": fields}, "data": data, "total_rows": total}}
    return {}


def _of_polars(frame: Any) -> tuple[list[Any], list[str], list[Any], int]:
    head = frame.head(_ROWS)[:, :_COLUMNS]
    return list(head.columns), [_polars_type(str(dtype)) for dtype in head.dtypes], head.rows(), frame.height


def _polars_type(name: str) -> str:
    for start, kind in (
        *(("Int", "integer"), ("UInt", "integer"), ("Float", "number"), ("Decimal", "number"), ("Bool", "boolean")),
        *(("Datetime", "datetime"), ("Date", "date"), ("Time", "time"), ("Duration", "duration")),
        *(("String", "string"), ("Utf8", "string"), ("Categorical", "string"), ("Enum", "string")),
    ):
        if name.startswith(start):
            return kind
    return "any"


def _of_pandas(frame: Any) -> tuple[list[Any], list[str], list[Any], int]:
    head = frame.iloc[:_ROWS, :_COLUMNS]
    kinds = {"i": "integer", "u": "integer", "f": "number", "b": "boolean", "M": "datetime", "m": "duration"}
    names, types_ = list(head.columns), [kinds.get(getattr(dtype, "kind", "O"), "string") for dtype in head.dtypes]
    rows = list(head.itertuples(index=False, name=None))
    if type(head.index).__name__ != "RangeIndex":  # it says something
        index = [key if isinstance(key, tuple) else (key,) for key in head.index]
        levels = ["index" if name is None else name for name in head.index.names]
        kind = kinds.get(getattr(head.index.dtype, "kind", "O"), "string") if len(levels) == 1 else "any"
        names, types_ = [*levels, *names], [kind] * len(levels) + types_
        rows = [(*key, *row) for key, row in zip(index, rows, strict=True)]
    return names, types_, rows, len(frame)


_FRAMES = {"polars": _of_polars, "pandas": _of_pandas}


def _distinct(names: list[Any]) -> list[str]:
    found: dict[str, None] = {}
    for name in map(str, names):
        unique, count = name, 0
        while unique in found:
            count += 1
            unique = f"{name}.{count}"
        found[unique] = None
    return list(found)


# --- JSON


def plain(value: Any) -> Any:
    """The value in JSON's own types; what JSON cannot say as a string, null for what is not a number."""
    return _Plain().of(value)


class _Plain:
    def __init__(self) -> None:
        self._path: set[int] = set()
        self._nodes = 0

    def of(self, value: Any) -> Any:
        self._nodes += 1
        if id(value) in self._path or len(self._path) > _DEPTH or self._nodes > _NODES:
            return "..."
        try:
            return self._of(value)
        except Exception:
            return "..."

    def _of(self, value: Any) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            value = int.__int__(value)
            return value if value.bit_length() <= _INT_BITS else hex(value)
        if isinstance(value, float):
            value = float.__float__(value)
            return value if value - value == 0 else None
        if isinstance(value, (bytes, bytearray)):
            return value.decode("utf-8", "backslashreplace")
        if type(value).__name__ in ("NaTType", "NAType"):
            return None
        self._path.add(id(value))
        try:
            if isinstance(value, dict):
                return {str.__str__(str(key)): self.of(item) for key, item in list(value.items())}
            if isinstance(value, (list, tuple, set, frozenset)):
                return [self.of(item) for item in list(value)]
            for name in ("tolist", "to_list", "isoformat"):
                method = getattr(type(value), name, None)
                if callable(method):
                    return self.of(method(value))
            return str.__str__(str(value))
        finally:
            self._path.discard(id(value))


def to_json(value: Any) -> str:
    """JSON of what `plain` gives, without a word to the program's json module."""
    if isinstance(value, str):
        return _quote(value)
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ",".join([f"{_quote(key)}:{to_json(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([to_json(item) for item in value]) + "]"
    return repr(value)


def fit(forms: dict[str, Any], limit: int) -> bytes:
    """The bundle as JSON of about that size at most: the biggest forms go first, and a note says so."""
    encoded = {mime: to_json(form).encode("utf-8", "replace") for mime, form in forms.items()}
    notes = []
    while sum(map(len, encoded.values())) > limit and encoded:
        mime = max(encoded, key=lambda name: len(encoded[name]))
        size = len(encoded.pop(mime))
        notes.append(f"... ({mime} left out: {size:,} bytes are too many)")
        if mime == "text/plain" and limit > 8 * _CUT:
            notes[-1:] = [forms[mime][:_CUT], f"... ({size:,} bytes in all)"]
    if notes:
        kept = [forms["text/plain"]] if "text/plain" in encoded else []
        encoded["text/plain"] = to_json("\n".join(kept + notes)).encode("utf-8", "replace")
    names = {mime: _quote(mime).encode("utf-8", "replace") for mime in encoded}
    return b"{" + b",".join([names[mime] + b":" + form for mime, form in encoded.items()]) + b"}"


# --- what imports find


class _Finder:
    """Sees two imports: matplotlib's, to draw for us, and IPython's, to be there if nothing else is."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "matplotlib" and name not in _STAND_INS:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                return figures.watched(spec) if name == "matplotlib" else spec
        if name == "matplotlib" or (name != "IPython" and not _is_stand_in(sys.modules.get("IPython"))):
            return None
        import importlib.machinery

        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:  # noqa: ARG002
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(_STAND_INS[module.__name__])


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
