from __future__ import annotations

import base64
import datetime
import importlib.util
import json
import textwrap

import pytest

from fumehood.guest import plain as guest_plain
from fumehood.guest.display import TABLE, bundle
from fumehood.guest.plain import fit, plain, to_json

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.fixture(autouse=True)
def installed():
    guest_plain.install()


class Rich:
    def _repr_html_(self):
        return "<b>x</b>"

    def _repr_markdown_(self):
        return ("**x**", {"metadata": 1})

    def _repr_svg_(self):
        return None

    def _repr_png_(self):
        return PNG

    def _repr_jpeg_(self):
        raise ValueError

    def _repr_latex_(self):
        return "$x$"

    def _repr_json_(self):
        return {"x": [1, float("nan")]}

    def __repr__(self):
        return "rich"


def test_a_value_offers_its_forms_and_always_text():
    assert bundle(Rich()) == {
        "text/html": "<b>x</b>",
        "text/markdown": "**x**",
        "image/png": base64.b64encode(PNG).decode(),
        "text/latex": "$x$",
        "application/json": {"x": [1, None]},
        "text/plain": "rich",
    }


def test_a_mimebundle_goes_before_the_methods():
    class Both(Rich):
        def _repr_mimebundle_(self, include=None, exclude=None):  # noqa: ARG002
            return {"text/html": "<i>", "text/plain": "mine", "image/png": PNG, 5: "x", "y" * 500: "x"}, {"meta": 1}

    forms = bundle(Both())
    assert (forms["text/html"], forms["text/plain"], forms["text/latex"]) == ("<i>", "mine", "$x$")
    assert forms["image/png"] == base64.b64encode(PNG).decode()
    assert all(isinstance(mime, str) and len(mime) < 200 for mime in forms)


def test_classes_are_not_asked():
    assert bundle(Rich).keys() == {"text/plain"}


def test_who_answers_to_every_name_is_not_asked():
    class Anything:
        def __getattr__(self, name):
            return lambda *_, **__: "surprise"

    assert bundle(Anything()).keys() == {"text/plain"}


class Broken:
    def __repr__(self):
        raise ValueError("no")


class NoText:
    def __repr__(self):
        return 5


@pytest.mark.parametrize(("value", "error"), [(Broken(), "ValueError"), (NoText(), "TypeError")])
def test_a_repr_that_fails_is_told(value, error):
    assert f"{type(value).__name__} object whose repr() raised {error}" in bundle(value)["text/plain"]


def test_text_forms_are_text():
    class Wrong:
        def _repr_html_(self):
            return 5

        def _repr_svg_(self):
            return ["<svg/>"]

    assert bundle(Wrong()).keys() == {"text/plain"}


def test_big_containers_are_laid_out():
    text = bundle({f"key{i}": list(range(10)) for i in range(20)})["text/plain"]
    assert len(text.splitlines()) == 20
    assert bundle({"a": 1}) == {"text/plain": "{'a': 1}"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("inf"), None),
        ((1, 2), [1, 2]),
        ({1: 2, None: 3}, {"1": 2, "None": 3}),
        pytest.param(10**4000, hex(10**4000), id="long"),
        (True, True),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (b"\xff", "\\xff"),
        (Broken(), "..."),
        ({"a": Broken()}, {"a": "..."}),
    ],
)
def test_everything_becomes_json(value, expected):
    assert plain(value) == expected
    assert json.loads(to_json(plain(value))) == expected


def test_circles_depths_and_doublings_end():
    circle: list = [1]
    circle.append(circle)
    assert plain(circle) == [1, "..."]
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    assert json.loads(to_json(plain(deep)))
    double: list = [0]
    for _ in range(45):
        double = [double, double]
    assert len(to_json(plain(double))) < 10_000_000


def test_what_is_sent_is_valid_json_and_utf8():
    sent = fit({"text/plain": "a\ud800\x00ü\u2028", "application/json": {"\udfff": "\n"}}, 1000)
    assert json.loads(sent) == {"text/plain": "a?\x00ü\u2028", "application/json": {"?": "\n"}}


def test_the_biggest_forms_go_first():
    forms = {"image/png": "p" * 500, "text/html": "h" * 300, "text/plain": "t" * 10}
    assert json.loads(fit(forms, 1000)) == forms
    assert json.loads(fit(forms, 700)).keys() == {"text/html", "text/plain"}
    least = json.loads(fit(forms, 100))
    assert least.keys() == {"text/plain"}
    assert least["text/plain"].startswith("t" * 10 + "\n... (image/png left out")


def test_polars_frames_are_tables_too():
    polars = pytest.importorskip("polars", reason="needs polars")
    frame = polars.DataFrame(
        {"n": range(150), "x": [float("nan")] * 150, "s": ["a"] * 150, "d": [datetime.date(2024, 1, 2)] * 150}
    )
    forms = bundle(frame)
    table = forms[TABLE]
    assert table["schema"]["fields"] == [
        {"name": "n", "type": "integer"},
        {"name": "x", "type": "number"},
        {"name": "s", "type": "string"},
        {"name": "d", "type": "date"},
    ]
    assert (len(table["data"]), table["total_rows"]) == (100, 150)
    assert table["data"][3] == {"n": 3, "x": None, "s": "a", "d": "2024-01-02"}
    assert "<table" in forms["text/html"]
    assert "shape: (150, 4)" in forms["text/plain"]


def test_pandas_frames_are_tables_too():
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    frame = pandas.DataFrame({"n": [1, 2], "t": [pandas.Timestamp("2024-01-02"), pandas.NaT]}, index=["a", "b"])
    table = bundle(frame)[TABLE]
    assert [field["type"] for field in table["schema"]["fields"]] == ["string", "integer", "datetime"]
    assert table["data"][1] == {"index": "b", "n": 2, "t": None}
    assert bundle(pandas.DataFrame({"n": [1]}))[TABLE]["data"] == [{"n": 1}]


def test_a_frame_of_pandas_make_is_a_table_without_pandas():
    class Kind:
        def __init__(self, kind):
            self.kind = kind

    class RangeIndex:
        pass

    class DataFrame:
        columns, dtypes, index = ["a", "a"], [Kind("i"), Kind("O")], RangeIndex()

        def itertuples(self, index, name):
            assert (index, name) == (False, None)
            return iter([(1, "x")])

        def __len__(self):
            return 1

    class Located:
        def __init__(self, frame):
            self.frame = frame

        def __getitem__(self, place):
            return self.frame

    DataFrame.iloc = property(Located)
    DataFrame.__module__ = "pandas.core.frame"
    table = bundle(DataFrame())[TABLE]
    assert table == {
        "schema": {"fields": [{"name": "a", "type": "integer"}, {"name": "a.1", "type": "string"}]},
        "data": [{"a": 1, "a.1": "x"}],
        "total_rows": 1,
    }


# --- in a worker


def test_display_shows_several_in_order_before_the_value(worker):
    ran = worker.run("display(1, 'two')\nprint('x')\n3")
    assert [shown["text/plain"] for shown in ran.displays] == ["1", "'two'", "3"]


def test_raw_bundles_and_handles(worker):
    ran = worker.run("display({'text/html': '<p>', 'image/png': b'123'}, raw=True)")
    assert ran.displays == [{"text/html": "<p>", "image/png": "MTIz"}]
    assert worker.run("h = display(1, display_id=True)\nh.update(2)\nclear_output()").value == "2"


def test_a_display_of_the_programs_own_name_is_its_own(worker):
    assert worker.run("def display(x): print('mine', x)\ndisplay(1)").stdout == "mine 1\n"


@pytest.fixture
def without_ipython(worker):
    """As good as absent: found by nobody but us."""
    hidden = """
    import sys
    class Hide:
        def __init__(self, finder): self.finder = finder
        def find_spec(self, name, *rest):
            return None if name.partition(".")[0] == "IPython" else self.finder.find_spec(name, *rest)
    sys.meta_path[1:] = [Hide(finder) for finder in sys.meta_path[1:]]
    """
    assert worker.run(textwrap.dedent(hidden)).exit_code == 0
    return worker


def test_ipython_is_stood_in_for(without_ipython):
    worker = without_ipython
    code = "from IPython.display import *\nimport IPython.display as d\n"
    code += "for x in (d.HTML('<p>'), d.Markdown('*'), d.SVG('<svg/>'), d.Latex('$'), d.JSON('[1]')): d.display(x)"
    ran = worker.run(code)
    assert [next(iter(shown.items())) for shown in ran.displays] == [
        ("text/html", "<p>"),
        ("text/markdown", "*"),
        ("image/svg+xml", "<svg/>"),
        ("text/latex", "$"),
        ("application/json", [1]),
    ]
    assert worker.run("d.Javascript('alert()')").displays == [
        {"text/plain": "<IPython.core.display.Javascript object>"}
    ]
    assert worker.run("import IPython\nIPython.get_ipython(), IPython.version_info[0]").value == "(None, 8)"
    assert worker.run("from IPython.core.display import HTML").exit_code == 0
    assert worker.run("import IPython.nothing").error == "ModuleNotFoundError"


def test_a_real_ipython_shows_through_us(worker):
    if importlib.util.find_spec("IPython") is None:
        pytest.skip("needs IPython")
    ran = worker.run("from IPython.display import HTML, display\ndisplay(HTML('<p>'))")
    assert (ran.displays[0]["text/html"], ran.stdout) == ("<p>", "")


def test_ipython_is_not_there_before_it_is_asked_for(without_ipython):
    assert without_ipython.run("'IPython' in sys.modules").value == "False"


def test_images_by_data_and_by_name(without_ipython, tmp_path):
    worker = without_ipython
    worker.run(f"from IPython.display import Image\ndata = {PNG!r}\nname = {str(tmp_path / 'a.png')!r}")
    worker.run("open(name, 'wb').write(data);")
    encoded = base64.b64encode(PNG).decode()
    for code in ("Image(data)", "Image(name)", "Image(filename=name)", "Image(data=data)"):
        assert worker.run(code).displays[-1]["image/png"] == encoded, code
