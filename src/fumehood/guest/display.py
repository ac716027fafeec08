"""What a value looks like: MIME bundles in Jupyter's vocabulary, and `display`."""

from __future__ import annotations

import builtins

from . import figures
from .plain import plain
from .wire import BUNDLE_FORMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
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
_MIME = 100
_PRETTY = 20_000
_WIDTH = 100

_publish: Callable[[dict[str, Any]], None] = lambda bundle: None  # noqa: E731, ARG005


def install(publish: Callable[[dict[str, Any]], None]) -> None:
    """Give the program `display`; what it shows goes to `publish`."""
    global _publish
    _publish = publish
    for name, function in (("display", display), ("clear_output", clear_output)):
        if not hasattr(builtins, name):
            setattr(builtins, name, function)


def display(*values: Any, raw: bool = False, display_id: Any = None, **_options: Any) -> Any:
    """Show values now, in the richest forms they have."""
    for value in values:
        _publish(_chosen(value.items()) if raw else bundle(value))
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
    forms = {} if issubclass(type(value), type) else _chosen(_offered(value))
    if "text/plain" not in forms:
        forms["text/plain"] = _text(value)
    return forms


def _chosen(offered: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """What the host takes: JSON for JSON's types, text or base64 for all others."""
    forms: dict[str, Any] = {}
    for mime, form in offered:
        if isinstance(mime, str) and len(mime) <= _MIME and form is not None and len(forms) < BUNDLE_FORMS - 1:
            form = _form(form)
            if isinstance(form, str) or "json" in mime:
                forms[str.__str__(mime)] = form
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
