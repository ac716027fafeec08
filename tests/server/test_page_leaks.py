"""What a program shows makes the browser of who looks at it fetch nothing, connect nowhere and look up no name."""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from canaries import ALL, AS_TEXT, FETCHES, FIRST, NOTHING, SVG, Listener, filled, listening, looked_up, named
from test_page import CHROMIUM, FLAGS, WAIT_MS, Opened, expect, outcome, own_temporary_files, run

from running import Running
from support import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, FrameLocator, Page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
AT_ONCE = 45
NOWHERE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE *.localhost"
HELD_BACK = "--disable-background-networking"
SHOW = """
class Shown:
    def __init__(self, html): self.html = html
    def _repr_html_(self): return self.html
for html in {all!r}: display(Shown(html))
"""
DRAW = """
class Drawn:
    def _repr_svg_(self): return {shown!r}
open('/tmp/output/left.svg', 'w').write({left!r})
Drawn()
"""
OTHERWISE = """
class Form:
    def __init__(self, kind, data): self.form = {{kind: data}}
    def _repr_mimebundle_(self, include=None, exclude=None): return self.form
address, markup = {address!r}, {markup!r}
table = {{"schema": {{"fields": [{{"name": markup}}]}}, "data": [{{markup: markup}}, {{markup: address}}]}}
spec = {{"data": {{"url": address}}, "layout": {{"images": [{{"source": address}}]}}, "markup": markup}}
for kind, data in [
    ("text/markdown", f"![x]({{address}}) <{{address}}> " + markup), ("text/latex", r"\\includegraphics{{%s}} \\href{{%s}}{{x}}" % (address, address)),
    ("application/json", spec), ("application/vnd.dataresource+json", table), ("text/plain", markup), ("image/png", "PHN2Zz4="),
    *((kind, spec) for kind in ("application/vnd.plotly.v1+json", "application/vnd.vegalite.v5+json", "application/geo+json")),
    *((kind, markup) for kind in ("application/javascript", "text/javascript", "application/xhtml+xml", "text/xml", "application/pdf")),
]: display(Form(kind, data))
print(f"\\x1b]8;;{{address}}\\x1b\\\\link\\x1b]8;;\\x1b\\\\ {{address}} {{markup}}")
print("the last of it")
"""
WITH_ADDRESS = "xpath=//*[@*[starts-with(name(), 'on') or name() != 'title' and contains(., 'localhost')]]"
ADDRESSES = "() => [...document.querySelectorAll('*')].flatMap(node => [...node.attributes]).filter(({value}) => value.includes('localhost')).length"


@pytest.fixture
def net_log(tmp_path: Path) -> Path:
    return tmp_path / "net-log.json"


@pytest.fixture
def browser(tmp_path: Path, net_log: Path) -> Iterator[BrowserContext]:
    """One that keeps a log of its network and can find no host but this one; with a profile, for without it connects to nothing ahead."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives the browser")
    playwright.expect.set_options(timeout=WAIT_MS)
    with playwright.sync_playwright() as driver, own_temporary_files() as env:
        context = driver.chromium.launch_persistent_context(
            tmp_path / "profile",
            executable_path=CHROMIUM,
            args=[*(flag for flag in FLAGS if flag != HELD_BACK), NOWHERE, f"--log-net-log={net_log}"],
            ignore_default_args=[HELD_BACK],
            viewport={"width": 1280, "height": 8000},
            timeout=WAIT_MS,
            env=env,
        )
        yield context
        context.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as found:
        yield found


@pytest.fixture
def control() -> Iterator[Listener]:
    with listening() as found:
        yield found


def nothing_was_asked_for(browser: BrowserContext, listener: Listener, control: Listener, net_log: Path) -> None:
    """The control shows all of it unheld, later: when the log has that, what came before has had its time."""
    frames = [escape(filled(label, "free", control.port)) for label in ALL]
    control.document = b"<!doctype html>" + "".join(f'<iframe srcdoc="{frame}"></iframe>' for frame in frames).encode()
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"http://127.0.0.1:{control.port}/", wait_until="commit")

    def is_logged() -> bool:
        page.evaluate("fetch('/more').then(() => null)")  # the log is written in batches
        return named(net_log, "free") >= set(FETCHES)

    assert wait_until(is_logged), set(FETCHES) - named(net_log, "free")
    browser.close()
    assert looked_up(net_log, "free") >= set(FETCHES)
    assert control.connections >= len(FETCHES) - 1  # all but what is only looked up
    assert named(net_log, "held") == looked_up(net_log, "held") == set()
    assert listener.connections == 0


def touch(page: Page, inside: FrameLocator) -> None:
    """All that somebody might choose there."""
    for found in inside.locator("a, button, text, label, input, summary").all():
        if box := found.bounding_box():
            page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_html_of_a_program_fetches_nothing_and_looks_up_no_name(
    browser: BrowserContext, server: Running, listener: Listener, control: Listener, net_log: Path
) -> None:
    window = Opened(browser)
    page = window.enter(server)
    for start in range(0, len(ALL), AT_ONCE):
        labels = list(ALL)[start : start + AT_ONCE]
        shown = run(page, SHOW.format(all=[filled(label, "held", listener.port) for label in labels]))
        outcome(shown, "Done")
        expect(shown.locator("iframe")).to_have_count(len(set(labels) - NOTHING))
        for at, label in enumerate(labels):
            if label in NOTHING:
                expect(shown.locator("fume-value").nth(at)).to_contain_text("needs scripts or a connection")
                continue
            inside = shown.locator("fume-value").nth(at).locator("iframe").content_frame
            if label in AS_TEXT:
                expect(inside.locator("pre")).to_contain_text(label)
            elif label not in FIRST:
                expect(inside.locator("b").first).to_have_text(label)
            expect(inside.locator(WITH_ADDRESS)).to_have_count(0)
        assert window.complaints == []  # of a click, Chromium says that no script runs there
        for frame in shown.locator("iframe").all():
            touch(page, frame.content_frame)
        window.complaints[:] = [said for said in window.complaints if not said.startswith("Blocked script execution")]
    assert window.complaints == []
    nothing_was_asked_for(browser, listener, control, net_log)


def test_drawings_of_a_program_fetch_nothing_also_where_they_are_opened_by_themselves(
    browser: BrowserContext, server: Running, listener: Listener, control: Listener, net_log: Path
) -> None:
    window = Opened(browser)
    page = window.enter(server)
    drawings = {name: SVG.replace("U", f"http://held-{name}.localhost:{listener.port}/") for name in ("shown", "left")}
    pictures = run(page, DRAW.format(**drawings)).locator("fume-value img")
    expect(pictures).to_have_count(2)
    for picture in pictures.all():
        expect(picture).to_have_js_property("naturalWidth", 90)
        with browser.expect_page() as opened:
            picture.evaluate("node => { open(node.src) }")
        expect(opened.value.locator("rect")).to_have_count(1)
        assert opened.value.evaluate(ADDRESSES) == 0
    assert window.complaints == []
    nothing_was_asked_for(browser, listener, control, net_log)


def test_other_forms_of_a_value_fetch_nothing(
    browser: BrowserContext, server: Running, listener: Listener, control: Listener, net_log: Path
) -> None:
    window = Opened(browser)
    page = window.enter(server)
    address = f"http://held-other.localhost:{listener.port}/"
    markup = f'<img src="{address}"><link rel="preconnect" href="{address}">'
    shown = run(page, OTHERWISE.format(address=address, markup=markup))
    outcome(shown, "Done")
    expect(shown.locator("pre", has_text="the last of it")).to_be_visible()
    expect(shown.locator("fume-value")).to_have_count(14)
    expect(shown.locator("iframe, link, a[href*=localhost], img[src*=localhost]")).to_have_count(0)
    assert window.complaints == []
    nothing_was_asked_for(browser, listener, control, net_log)
