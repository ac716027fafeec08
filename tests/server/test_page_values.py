"""What a program may give as a value: whatever it is, the page shows it or says what it is, and still answers."""

# ruff: noqa: E501

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest
import test_page
from test_page import CHROMIUM, expect, outcome, run

if TYPE_CHECKING:
    from playwright.sync_api import FrameLocator, Locator, Page

browser, open_page, page = test_page.browser, test_page.open_page, test_page.page
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
FORM = """
import base64, json, zlib
class Form:
    def __init__(self, form): self.form = form
    def _repr_mimebundle_(self, include=None, exclude=None): return self.form
for form in json.loads(zlib.decompress(base64.b64decode({packed!r}))): display(Form(form))
"""
DOT = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
SVG = "xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink' width='90' height='60'"
TABLE = "application/vnd.dataresource+json"
NEEDS = "This output needs scripts or a connection, which the page does not give it."


def show(page: Page, *forms: dict[str, Any]) -> list[Locator]:
    """These values, shown by a run that is done."""
    packed = b64encode(zlib.compress(json.dumps(forms).encode())).decode()
    shown = run(page, FORM.format(packed=packed))
    outcome(shown, "Done")
    expect(shown.locator("fume-value")).to_have_count(len(forms))
    return shown.locator("fume-value").all()


def html(page: Page, source: str) -> FrameLocator:
    """This HTML, as it is shown."""
    (value,) = show(page, {"text/html": source})
    return value.locator("iframe").content_frame


def drawn(page: Page, value: Locator) -> str:
    """The drawing of this value, as who opens it by itself has it."""
    with page.context.expect_page() as opened:
        value.locator("img").evaluate("node => { open(node.src) }")
    text: str = opened.value.locator("svg").first.evaluate("node => node.outerHTML")
    opened.value.close()
    return text


def answers(page: Page) -> None:
    expect(run(page, "6 * 7").locator("fume-value")).to_have_text("42")


NESTED = {
    "rules": "a{" * 5000 + "color: red" + "}" * 5000,
    "selectors": ":is(" * 20000 + "a" + ")" * 20000 + "{color: red}",
    "conditions": "@media all{" * 5000,
    "values": "p{--x:" + "[(" * 10000 + "}",
    "behind comments": "a{/*}*/" * 5000,
    "behind strings": 'a{"}"' * 5000,
    "behind a name in disguise": 'b{x:\\75rl(")}' + 'a{"}"' * 5000,
    "behind an address": 'b{x:url(")}' + 'a{"}"' * 5000,
    "behind the end of a line": 'b{x:"\\\r\n"}' + 'a{"}"' * 5000,
}


@pytest.mark.parametrize("kind", NESTED)
def test_deeply_nested_styles_do_not_end_the_page(page: Page, kind: str) -> None:
    deep = NESTED[kind]
    markup = f"<style>p{{color: rgb(1, 2, 3)}}</style><style>{deep}</style><p>a sheet<p id=attribute style='{deep}'>in an attribute"
    drawing = f"<svg {SVG}><style>{deep}</style><rect width='9' height='9'/></svg>"
    as_html, as_svg = show(page, {"text/html": markup}, {"image/svg+xml": drawing})
    inside = as_html.locator("iframe").content_frame
    expect(inside.locator("p").first).to_have_text("a sheet")
    expect(inside.locator("p").first).to_have_css("color", "rgb(1, 2, 3)")
    expect(inside.locator("#attribute")).to_have_text("in an attribute")
    expect(as_svg.locator("img")).to_have_count(1)
    answers(page)


def test_styles_as_they_are_written_are_kept_whole(page: Page) -> None:
    rules = "".join(f'.a{n} {{ color: rgb(0, 0, {n}); content: "}}" }} /* {{ */' for n in range(200))
    nested = "@media all { @supports (color: red) { :is(p, :not(b)) { & i { width: calc((1px + (2px * 3)) + 4px); display: block } } } }"
    inside = html(
        page,
        f"<style>{rules} .sm\\:b:not(.x) {{ color: rgb(9, 9, 9) }} {nested}</style><b class=a199>x</b><p class=sm:b><i>x</i>",
    )
    expect(inside.locator("b")).to_have_css("color", "rgb(0, 0, 199)")
    expect(inside.locator("p i")).to_have_css("width", "11px")


WORDS = {
    "in a drawing": "<svg><path class='" + "a" * 1_000_000 + "'/></svg>",
    "in a style": "<style>p{--x:" + "a" * 1_000_000 + "}</style>",
    "behind a reference": "<style>p{fill: url(#a); --x: ';" + "a" * 1_000_000 + "'}</style><i id=a>x</i>",
}


@pytest.mark.parametrize("kind", WORDS)
def test_a_word_without_end_does_not_stop_the_page(page: Page, kind: str) -> None:
    expect(html(page, WORDS[kind] + "<p>shown").locator("p")).to_have_text("shown")


NOTS = "".join(f":not(.a{n})" for n in range(300))
MATCHED = {
    "many rules": "".join(f":not(.a{n}){{--x{n}: 1}}" for n in range(20_000)),
    "long selectors": "".join(f"g{NOTS}{{stroke-width: {n}}}" for n in range(1000)),
    "selectors that point": "".join(f"g{NOTS}:not(.b{n}){{fill: url(#a)}}" for n in range(1000)),
    "what comes before": "[x] ~ g{color: red}",
    "what is around, and around that": ":is(:is(:is([x] *) *) *) *{color: red}",
    "what is in it": "".join(f":has(.a{n}){{color: red}}" for n in range(20)),
    "rules in rules": ".x{" + "&:not(a), &:not(b){" * 40 + "color: red" + "}" * 41,
    "long lists": "g{mask-image: " + ",".join(["url(#a)"] * 5000) + "}",
}


@pytest.mark.parametrize("kind", MATCHED)
def test_styles_that_take_without_end_to_match_are_left_out(page: Page, kind: str) -> None:
    parts = "<path id='a'/><g>" + "<g>" * 400 + "</g>" * 400 + "<g/>" * 30_000 + "</g>"
    drawing = (
        f"<svg {SVG}><style>{MATCHED[kind]}</style>{parts}<text y='9' style='fill: rgb(1, 2, 3)'>kept</text></svg>"
    )
    image, inline = show(page, {"image/svg+xml": drawing.replace("&", "&amp;")}, {"text/html": drawing})
    assert "<style></style>" in drawn(page, image).replace("<style/>", "<style></style>")
    expect(inline).to_contain_text("is shown without its style sheets")
    frame = inline.locator("iframe").content_frame
    expect(frame.locator("text")).to_have_css("fill", "rgb(1, 2, 3)")
    assert len("".join(frame.locator("style").all_inner_texts())) < 1000
    answers(page)


def test_each_style_in_an_attribute_is_found_by_a_name_of_its_own(page: Page) -> None:
    source = "".join(
        f"<b style='color: rgb(0, {n // 100}, {n % 100})' data-fume-1 data-fume='1'>x</b>" for n in range(9999)
    )
    inside = html(page, f"{source}<p data-fume-7='' style='color: rgb(9, 9, 9)'>x</p>")
    expect(inside.locator("b").nth(9998)).to_have_css("color", "rgb(0, 99, 98)")
    expect(inside.locator("p")).to_have_css("color", "rgb(9, 9, 9)")
    named = inside.locator("b, p").evaluate_all("all => all.flatMap(node => node.getAttributeNames())")
    assert len(named) == len(set(named)) == 10_000


def test_a_filter_of_a_style_has_few_effects(page: Page) -> None:
    shadow = "drop-shadow(1px 1px 1px red) "
    styles = [
        f"filter: {shadow * 2}blur(1px)",
        f"filter: {shadow * 40}",
        f"--x: {shadow * 5}; filter: var(--x) var(--x)",
    ]
    sheet = f"<style>u{{filter: {shadow * 40}; backdrop-filter: {shadow * 40}; color: rgb(1, 2, 3)}}</style><u>x</u>"
    inside = html(page, sheet + "".join(f"<p style='{style}'>x</p>" for style in styles))
    filters = inside.locator("p, u").evaluate_all(
        "all => all.map(node => getComputedStyle(node).filter.split('drop-').length - 1)"
    )
    assert filters == [0, 2, 0, 0]
    expect(inside.locator("u")).to_have_css("backdrop-filter", "none")
    expect(inside.locator("u")).to_have_css("color", "rgb(1, 2, 3)")
    drawing = f"<svg {SVG}><rect width='9' height='9' style='filter: {shadow * 40}'/><rect width='9' height='9' filter='{shadow * 40}'/></svg>"
    (image,) = show(page, {"image/svg+xml": drawing})
    assert "shadow" not in drawn(page, image)


def test_cells_that_span_more_than_can_be_laid_out_span_nothing(page: Page) -> None:
    wide = "<tr>" + "<td rowspan=65534 colspan=1000>x" * 50
    sources = ["<table>" + wide * 1000, "<table><colgroup>" + "<col span=1000>" * 2000 + "<tr><td>x"]
    for value in show(page, *({"text/html": source} for source in sources)):
        frame = value.locator("iframe").content_frame
        expect(frame.locator("td").first).to_have_text("x")
        expect(frame.locator("[rowspan], [colspan], [span]")).to_have_count(0)
    inside = html(page, "<table>" + "<tr><th rowspan=2>x<td colspan=3>y<tr><td>z" * 1000)
    expect(inside.locator("[rowspan='2'], [colspan='3']")).to_have_count(2000)


DEEP = {
    "open": "<div>" * 100000,
    "closed by another": "<div></b>" * 50000,
    "closed in an attribute": '<div title="</div>">' * 50000,
    "closed in a comment": "<div><!--</div>-->" * 50000,
    "closed in a style": "<svg><style><x></style></svg>" + "<div><style></div></style>" * 2000,
    "closed in a section": "<svg><![CDATA[><!--]]></svg>" + "<div><!-- --></div>" * 2000,
    "closed by itself": "<svg></svg>" + "<g/>" * 50000,
    "after a drawing": "<svg><p>" + "<g/>" * 50000,
    "not a drawing": "<template><col><svg></template>" + "<g/>" * 50000,
    "without end tags": "<li><dd>" * 20000,
}


@pytest.mark.parametrize("kind", DEEP)
def test_markup_too_deep_to_read_is_shown_as_text(page: Page, kind: str) -> None:
    (value,) = show(page, {"text/html": "the beginning" + DEEP[kind]})
    expect(value).to_contain_text("is shown as text: it is too deeply nested")
    expect(value.locator("iframe").content_frame.locator("pre")).to_contain_text("the beginning<")
    answers(page)


LARGE = {
    "long": "<p>x</p>" * 500000,
    "many elements": "<i></i>" * 300000,
    "many ends": "</p>" * 300000,
    "formats that are repeated": "".join(f"<b id=x{n}>" for n in range(400)) + "<p>x" * 2000,
}


@pytest.mark.parametrize("kind", LARGE)
def test_markup_too_large_to_read_is_shown_as_text_in_part(page: Page, kind: str) -> None:
    (value,) = show(page, {"text/html": "the beginning" + LARGE[kind]})
    expect(value).to_contain_text("is shown as text: it is too large")
    text = value.locator("iframe").content_frame.locator("pre")
    expect(text).to_contain_text("the beginning<")
    assert len(text.inner_text()) <= 100_001
    answers(page)


def test_attributes_without_end_are_shown_as_text(page: Page) -> None:
    many = "<p " + " ".join(f"a{n}=1" for n in range(50_000)) + ">x"
    odd = ["<p style" + " " * 500_000 + "x=1>x", "<p " + "on" * 200_000 + ">x", "<p " + " on=" * 900 + ">x"]
    values = show(page, *({"text/html": source} for source in [many, *odd]))
    expect(values[0]).to_contain_text("is shown as text")
    for value in values[1:]:
        expect(value.locator("iframe").content_frame.locator("p")).to_have_text("x")
    answers(page)


def test_ordinary_markup_is_not_too_deep_or_too_large(page: Page) -> None:
    ids = [[f"T_{n}_{m}" for m in range(10)] for n in range(1000)]
    rows = "".join(f"<tr>{''.join(f'<td id={name} style=text-align:right>{name}' for name in row)}" for row in ids)
    styles = "".join(f"#{name} {{background-color: rgb(1, 2, {n % 200})}}" for n, row in enumerate(ids) for name in row)
    title = "<title>x</title><style><![CDATA[path{fill:red}]]></style><desc>by hand</desc>"
    drawing = "<svg>" + title + "<path d='M0 0L9 9'/>" * 2000 + "</svg>"
    formulas = "<math><mi>a</mi><mspace width='1em'/><mo>+</mo></math>" * 600
    lists = f"<ul>{'<li>x<p>y<br>' * 2000}</ul>{'<script>if (a<b && c<d) e()</script>' * 600}"
    sources = [f"<style>{styles}</style><table>{rows}</table>", drawing, formulas, lists]
    values = show(page, *({"text/html": source} for source in sources))
    wanted = [("td", 10_000), ("path", 2000), ("mspace", 600), ("li", 2000)]
    for value, (name, count) in zip(values, wanted, strict=True):
        expect(value.locator("iframe").content_frame.locator(name)).to_have_count(count)
    expect(values[0].locator("iframe").content_frame.locator("#T_999_9")).to_have_css(
        "background-color", "rgb(1, 2, 199)"
    )
    expect(values[0].locator("iframe").content_frame.locator("#T_999_9")).to_have_css("text-align", "right")


def repeated(levels: int) -> str:
    parts = "".join(f"<g id='a{n + 1}'>" + f"<use href='#a{n}'/>" * 10 + "</g>" for n in range(levels - 1))
    return f"<svg {SVG}><g id='a0'><rect width='9' height='9'/></g>{parts}<use xlink:href='#a{levels - 1}'/><text y='9'>kept</text></svg>"


def nested(tag: str, name: str, levels: int, form: str = "{name}='url(#{id})'") -> str:
    box = "width='9' height='9' patternUnits='userSpaceOnUse' markerWidth='9' markerHeight='9'"
    paths = "".join(f"<path d='M{n} 0L9 {n}L3 {n}L0 9z' FORM/>" for n in range(10))
    level = [paths.replace("FORM", form.format(name=name, id=f"r{n}")) for n in range(levels)]
    insides = ["<path d='M0 0L9 9L0 9z'/>", *level]
    parts = "".join(f"<{tag} id='r{n}' {box}>{insides[n]}</{tag}>" for n in range(levels))
    return f"<svg {SVG}>{parts}{level[-1]}<text y='9'>kept</text></svg>"


FILLED = "".join(f".r{n} {{ fill: url(#r{n}) }}" for n in range(7))
TWICE = "<feBlend in='a' in2='a' result='a'/>"
TEN = "<feMerge result='a'>" + "<feMergeNode in='a'/>" * 10 + "</feMerge>"
BOTH = "<feMerge><feMergeNode in='SourceGraphic'/><feMergeNode in='SourceGraphic'/></feMerge>"


def filtered(steps: str, by: str = "url(#f)", levels: int = 1) -> str:
    inside = f"<g filter='{by}'>" * levels + "<rect width='9' height='9'/>" + "</g>" * levels
    return f"<svg {SVG}><filter id='f'>{steps}</filter>{inside}<text y='9'>kept</text></svg>"


REPEATED = {
    "filter that takes each step twice": filtered("<feFlood result='a'/>" + TWICE * 40),
    "filter that takes the step before twice": filtered("<feBlend/>" * 40),
    "filter that takes each step ten times": filtered("<feFlood result='a'/>" + TEN * 12),
    "filter of what it filters, twice": filtered(BOTH, "url(#f) " * 5, 20),
    "filter of many steps": filtered("<feOffset dx='1'/>" * 2000),
    "filter in filter": filtered(BOTH, levels=40),
    "use": repeated(6),
    "cycle": f"<svg {SVG} id='r'><g><use href='#r'/></g><text y='9'>kept</text></svg>",
    "pattern": nested("pattern", "fill", 7),
    "pattern, in a style": nested("pattern", "fill", 7, 'style="{name}: url(#{id})"'),
    "stroke": nested("pattern", "stroke", 7),
    "mask": nested("mask", "mask", 7),
    "marker": nested("marker", "marker-mid", 7),
    "clip path": nested("clipPath", "clip-path", 7),
    "pattern, in a sheet": nested("pattern", "fill", 7, "class='{id}'").replace(
        "<text", f"<style>{FILLED}</style><text"
    ),
    "pattern, in a sheet for all": nested("pattern", "fill", 7, "class='{id}'").replace(
        "<text", f"<style>@media all {{{FILLED}}}</style><text"
    ),
}


@pytest.mark.parametrize("kind", REPEATED)
def test_a_drawing_that_repeats_itself_without_end_is_drawn_once(page: Page, kind: str) -> None:
    image, inline = show(page, {"image/svg+xml": REPEATED[kind]}, {"text/html": REPEATED[kind]})
    text = drawn(page, image)
    frame = inline.locator("iframe").content_frame
    expect(frame.locator("text")).to_have_text("kept")
    shown = frame.locator("html").evaluate("node => node.outerHTML")
    for made in (text, shown):
        assert "kept" in made
        assert "<use" not in made
        assert "url(" not in made
    answers(page)


def test_a_drawing_keeps_its_shadows(page: Page) -> None:
    shadow = (
        "<feGaussianBlur in='SourceAlpha' stdDeviation='2' result='b'/><feOffset in='b' dx='2' result='o'/><feFlood flood-color='red'/>"
        "<feComposite in2='o' operator='in' result='c'/><feMerge><feMergeNode in='c'/><feMergeNode in='SourceGraphic'/></feMerge>"
    )
    source = filtered(shadow, levels=3)
    image, inline = show(page, {"image/svg+xml": source}, {"text/html": source})
    assert drawn(page, image).count('filter="url(#f)"') == 3
    expect(inline.locator("iframe").content_frame.locator("[filter]")).to_have_count(3)


def test_drawings_in_one_text_are_not_many_times_what_one_may_be(page: Page) -> None:
    source = "".join(
        f"<img alt='{n}' src=\"data:image/svg+xml,{repeated(5).replace('#', '%23').replace(chr(34), '%22')}\">"
        for n in range(20)
    )
    frame = html(page, source)
    expect(frame.locator("img")).to_have_count(20)
    assert 0 < frame.locator("img[src]").count() < 20


def test_a_drawing_that_repeats_its_marks_is_kept(page: Page) -> None:
    parts = "<defs><path id='m' d='M0 0L1 1'/><clipPath id='c'><rect width='90' height='60'/></clipPath></defs>"
    marks = "<use xlink:href='#m' x='1' y='2' style='fill: red'/>" * 20_000
    source = f"<svg {SVG}>{parts}<g clip-path='url(#c)'>{marks}</g></svg>"
    image, inline = show(page, {"image/svg+xml": source}, {"text/html": source})
    assert drawn(page, image).count("<use") == 20_000
    expect(inline.locator("iframe").content_frame.locator("[clip-path] use")).to_have_count(20_000)
    few = repeated(4)
    image, inline = show(page, {"image/svg+xml": few}, {"text/html": few})
    assert drawn(page, image).count("<use") == 31
    expect(inline.locator("iframe").content_frame.locator("use")).to_have_count(31)


def test_a_drawing_in_html_keeps_its_images_patterns_and_effects(page: Page) -> None:
    source = (
        "<svg width='90' height='60'><defs><pattern id='hatch' patternUnits='userSpaceOnUse' width='9' height='9'><path d='M0 9L9 0' stroke='red'/></pattern>"
        "<marker id='arrow' markerWidth='4' markerHeight='4' refX='2' orient='auto'><path d='M0 0L4 2L0 4z'/></marker><mask id='part'><rect width='9' height='9' fill='white'/></mask>"
        "<filter id='soft'><feGaussianBlur stdDeviation='2'/><feColorMatrix type='matrix' values='1 0 0 0 0 0 1 0 0 0 0 0 1 0 0 0 0 0 1 0'/></filter></defs>"
        f"<image xlink:href='{DOT}' id='pixels' width='9' height='9'/><image href='{DOT}' width='9' height='9' preserveAspectRatio='none'/>"
        "<path id='bar' d='M0 0H9V9H0z' style='fill: url(#hatch); stroke: #000'/><path id='line' d='M0 0L9 9' marker-end='url(#arrow)'/>"
        "<rect id='soft-part' width='9' height='9' mask='url(#part)' filter='url(#soft)'/><p><image src='/x.png'></svg>"
    )
    inside = html(page, source)
    expect(
        inside.locator("pattern path, marker path, mask rect, filter feGaussianBlur, feColorMatrix[values]")
    ).to_have_count(5)
    assert inside.locator("image").evaluate_all("all => all.map(node => node.href.baseVal)") == [DOT, DOT]
    expect(inside.locator("#bar")).to_have_css("fill", 'url("#hatch")')
    expect(inside.locator("#line")).to_have_css("marker-end", 'url("#arrow")')
    expect(inside.locator("#soft-part")).to_have_css("filter", 'url("#soft")')


def test_a_plot_as_a_drawing_in_html_keeps_its_pixels_and_its_hatches(page: Page) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `data`")
    code = (
        "import io, matplotlib\nmatplotlib.use('svg')\nimport matplotlib.pyplot as plt\n"
        "figure, axes = plt.subplots(1, 2)\naxes[0].imshow([[1, 2], [3, 4]])\naxes[1].bar([1, 2], [3, 4], hatch='//')\n"
        "data = io.StringIO()\nfigure.savefig(data, format='svg')\nplt.close('all')\n"
        "class Rich:\n    def _repr_html_(self): return data.getvalue()\nRich()"
    )
    inside = run(page, code).locator("iframe").content_frame
    expect(inside.locator("image")).to_have_count(1)
    assert inside.locator("image").evaluate("node => node.href.baseVal").startswith("data:image/png;base64,")
    assert inside.locator("pattern path").count() > 0
    assert (
        inside.locator("path").evaluate_all(
            "all => all.filter(node => getComputedStyle(node).fill.startsWith('url(')).length"
        )
        >= 2
    )


def test_an_attribute_may_hold_the_end_of_a_tag_and_the_name_of_another(page: Page) -> None:
    inside = html(
        page,
        "<table><tr><td title=\"x > y\" style='color: rgb(1, 2, 3)'>one<td title='my style = 3, onclick = 4' class=\"a style=b\">two"
        "<td title = unquoted style = color:rgb(4,5,6)>three</table><!-- <p style='--><p title=\"'\" STYLE='color: rgb(7, 8, 9)'>four</p>"
        "<style>b[title=\"<i style='\"] { color: rgb(1, 1, 1) }</style><b title=\"<i style='\" style='margin: 3px'>five</b>",
    )
    expect(inside.locator("td").nth(0)).to_have_css("color", "rgb(1, 2, 3)")
    expect(inside.locator("td").nth(0)).to_have_attribute("title", "x > y")
    expect(inside.locator("td").nth(1)).to_have_attribute("title", "my style = 3, onclick = 4")
    expect(inside.locator("td").nth(1)).to_have_attribute("class", "a style=b")
    expect(inside.locator("td").nth(2)).to_have_css("color", "rgb(4, 5, 6)")
    expect(inside.locator("p")).to_have_css("color", "rgb(7, 8, 9)")
    expect(inside.locator("b")).to_have_css("margin-top", "3px")


MALFORMED: dict[str, Any] = {
    "picture that is no text of bytes": {"image/png": "###"},
    "picture of nothing": {"image/png": ""},
    "picture that is none": {"image/png": "PHN2Zz4="},
    "pictures in a list": {"image/png": ["a"]},
    "table without rows": {TABLE: {"data": 5}},
    "table of a field that is none": {TABLE: {"schema": {"fields": [None]}, "data": [{"a": 1}]}},
    "table of a row that is none": {TABLE: {"schema": {"fields": [{"name": "a"}]}, "data": [None]}},
    "table of a name that is no text": {TABLE: {"schema": {"fields": [{"name": {"toString": 1}}]}, "data": [{"a": 1}]}},
    "no table": {TABLE: "text"},
    "markup that is no text": {"text/html": 5},
    "markup of nothing": {"text/html": " "},
    "drawing of nothing": {"image/svg+xml": ""},
}


def test_a_malformed_form_of_a_value_is_left_for_the_next(page: Page) -> None:
    for others, text in (({}, "the text"), ({"text/markdown": "*next*"}, "*next*")):
        for value in show(page, *({**form, **others, "text/plain": "the text"} for form in MALFORMED.values())):
            expect(value).to_have_text(text)
            expect(value.locator("img, table, iframe")).to_have_count(0)


def test_a_table_of_odd_fields_is_shown_with_what_it_has(page: Page) -> None:
    tables = [{"schema": {"fields": 5}, "data": [{"a": 1}]}, {"schema": None, "data": [{"a": 1}], "total_rows": "<b>"}]
    tables.append(
        {"schema": {"fields": [{"name": {"_$litType$": 1, "strings": ["<b>"]}, "type": 5}]}, "data": [{"a": 1}]}
    )
    values = show(page, *({TABLE: table, "text/plain": "no"} for table in tables))
    for value, head in zip(values, ["a", "a", "[object Object]"], strict=True):
        expect(value.locator("th")).to_have_text(head)
        expect(value).to_contain_text("1 row")


NEEDING = {
    "plotly": '<div><script src="/plotly.js"></script><div id="x" class="plotly-graph-div" style="height: 525px; width: 100%"></div><script>Plotly.newPlot("x", [])</script></div>',
    "altair": "<style>#vis.vega-embed { width: 100%; display: flex } #vis details { position: relative }</style><div id=vis></div><script>embed()</script>",
    "an empty frame": '<div style="width: 100%"><iframe srcdoc="&lt;p&gt;map" style="position: absolute"></iframe></div>',
}


def test_what_nothing_is_left_of_says_what_it_needs(page: Page) -> None:
    for value in show(page, *({"text/html": source} for source in NEEDING.values())):
        expect(value).to_have_text(NEEDS)
        expect(value.locator("iframe")).to_have_count(0)
    (value,) = show(page, {"text/html": NEEDING["plotly"], "text/plain": "Figure(5 traces)"})
    expect(value).to_contain_text(NEEDS)
    expect(value.locator("pre")).to_have_text("Figure(5 traces)")


def test_what_shows_something_in_place_of_its_frame_says_what_it_needs(page: Page) -> None:
    folium = '<div style="width: 100%"><span>Make this Notebook Trusted to load map</span><iframe srcdoc="&lt;p&gt;map"></iframe></div>'
    (value,) = show(page, {"text/html": folium})
    expect(value).to_contain_text(NEEDS)
    expect(value.locator("iframe").content_frame.locator("span")).to_be_visible()


def test_what_has_no_text_but_something_to_see_is_shown_without_a_word(page: Page) -> None:
    sources = [
        "<div style='background: red; height: 9px'></div>",
        "<svg width=9 height=9><rect width=9 height=9 /></svg>",
        f"<img src='{DOT}'>",
        "<hr>",
    ]
    for value in show(page, *({"text/html": source} for source in sources)):
        expect(value.locator("iframe")).to_have_count(1)
        expect(value.locator("p")).to_have_count(0)


def test_a_table_of_more_cells_than_can_be_shown_says_how_many_are_not(page: Page) -> None:
    fields = [{"name": f"c{n}"} for n in range(3000)]
    wide = {"schema": {"fields": fields}, "data": [{}] * 3000}
    long = {"schema": {"fields": fields[:1]}, "data": [{}] * 30_000}
    texts = {"schema": None, "data": [{"c0": "x" * 100_000, "c1": ["y"] * 100_000}, {"x" * 9: 1}]}
    values = show(page, *({TABLE: table} for table in (wide, long, texts)))
    expect(values[0].locator("p")).to_have_text(
        re.compile("^The first 100 of 3000 rows, the first 200 of 3000 columns$")
    )
    expect(values[0].locator("td")).to_have_count(20_000)
    expect(values[1].locator("p")).to_have_text("The first 20000 of 30000 rows, 1 column")
    expect(values[2].locator("p")).to_have_text("2 rows, 2 columns")
    assert [len(text) for text in values[2].locator("tr").nth(1).locator("td").all_inner_texts()] == [1001, 1001]


def test_json_is_shown_in_part_where_its_indents_are_more_than_it_is(page: Page) -> None:
    deep: Any = [1] * 390_000
    for _ in range(30):
        deep = [deep]
    plain: dict[str, Any] = {"a": [1, -2.5, None, True, 'é\n"x"'], "b": {}, "c": [], "d": {"e": [{"f": 1}]}, "": [[]]}
    as_part, whole, word = show(page, *({"application/json": form} for form in (deep, plain, "x" * 200_000)))
    assert as_part.locator("pre").inner_text() == json.dumps(deep, indent=2)[:100_000] + "…"
    assert whole.locator("pre").text_content() == json.dumps(plain, indent=2, ensure_ascii=False)
    assert word.locator("pre").text_content() == f'"{"x" * 99_999}…'


def test_an_empty_value_is_empty(page: Page) -> None:
    (value,) = show(page, {"text/html": "", "text/plain": ""})
    expect(value.locator("iframe, p")).to_have_count(0)
