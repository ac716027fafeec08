"""The page in a real browser: what a person sees and does there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import LASTING

from running import TOKENS, Running, held_port
from support import HANG_S, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
WAIT_MS = HANG_S * 1000
SHOTS = Path(__file__).parents[2] / "artifacts" / "page"
PASTE = """text => {
  const editor = document.querySelector("fume-app").shadowRoot.querySelector("fume-editor").shadowRoot;
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  const paste = new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true});
  editor.querySelector(".cm-content").dispatchEvent(paste);
}"""

FOCUSED = """() => {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  if (!at || at === document.body) return ["", true];
  const label = at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent;
  const ring = getComputedStyle(at.closest("#place") ?? at, at.closest("#place") ? "::after" : null);
  return [label.trim().split(/[:.]| Ctrl/)[0], ring.outlineStyle !== "none" || ring.borderTopStyle !== "none"];
}"""


def expect(found: Locator) -> Any:
    """playwright's own, which is loaded by who has a browser."""
    from playwright.sync_api import expect as expected

    return expected(found)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives the browser")
    playwright.expect.set_options(timeout=WAIT_MS)
    with playwright.sync_playwright() as driver, own_temporary_files() as env:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=WAIT_MS, env=env)
        yield chromium
        chromium.close()


@contextmanager
def own_temporary_files() -> Iterator[dict[str, str]]:
    """An environment for a browser, which leaves some behind now and then."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        yield {**os.environ, "TMPDIR": directory}


class Opened:
    """A page, and what its console must not say."""

    def __init__(self, context: BrowserContext) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.complaints: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def enter(self, server: Running, name: str = "alice") -> Page:
        self.page.goto(f"{server.url}/#token={TOKENS.get(name, name)}")
        expect(editor(self.page)).to_be_visible()
        expect(self.page.locator("header .level")).to_be_visible()
        return self.page


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Opened]]:
    """Opens a browser window; at the end, no window may have complained of anything but what the test expects."""
    contexts, windows = [], []

    def make(**settings: Any) -> Opened:
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings}))
        windows.append(Opened(contexts[-1]))
        return windows[-1]

    yield make
    for context in contexts:
        context.close()
    assert [said for window in windows for said in window.complaints] == []


@pytest.fixture
def page(open_page: Callable[..., Opened], server: Running) -> Iterator[Page]:
    """Signed in as alice, with no session of hers left from before."""
    end_all(server, "alice")
    return open_page().enter(server)


def end_all(server: Running, name: str) -> None:
    """The sessions of this owner."""
    with server.client(name) as client:
        for session in client.get("/sessions").json()["sessions"]:
            client.delete(f"/sessions/{session['session_id']}")


def editor(page: Page) -> Locator:
    return page.locator("fume-editor .cm-content")


def write(page: Page, code: str) -> None:
    editor(page).focus()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.evaluate(PASTE, code)


def run(page: Page, code: str) -> Locator:
    """The run as it is shown, the newest."""
    before = page.locator("fume-run").count()
    write(page, code)
    page.keyboard.press("Control+Enter")
    expect(page.locator("fume-run")).to_have_count(before + 1)
    return page.locator("fume-run").first


def outcome(shown: Locator, text: str) -> Locator:
    found = shown.locator(".outcome", has_text=text)
    expect(found).to_be_visible()
    return found


def leave_a_file(page: Page) -> None:
    """By a run, until it is listed: then no question of the page is on its way."""
    outcome(run(page, "open('/tmp/output/a', 'w').close()"), "Done")
    expect(page.get_by_role("tab", name="Files")).to_contain_text("1")


def shot(page: Page, name: str, **kinds: Any) -> None:
    """A picture to look at; a place that cannot be written costs only that."""
    try:
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / f"{name}.png", **kinds)
    except PermissionError:
        pass


def background(page: Page) -> str:
    return str(page.locator("section.card").evaluate("node => getComputedStyle(node).backgroundColor"))


def test_the_token_of_the_address_opens_the_page_and_leaves_the_address(page: Page, server: Running) -> None:
    assert page.url == f"{server.url}/"
    page.reload()
    expect(editor(page)).to_be_visible()
    assert TOKENS["alice"] not in page.evaluate("JSON.stringify(localStorage) + document.cookie")
    shot(page, "start")


def test_a_refused_token_is_said_and_asked_for_again(open_page: Callable[..., Opened], server: Running) -> None:
    window = open_page()
    window.page.goto(server.url)
    expect(window.page.get_by_label("Access token")).to_be_focused()
    window.page.keyboard.type("not-the-token")
    window.page.keyboard.press("Enter")
    expect(window.page.get_by_role("alert")).to_contain_text("refused this token")
    shot(window.page, "refused")
    window.page.get_by_label("Access token").fill(f"{server.url}/#token={TOKENS['alice']}")
    window.page.keyboard.press("Enter")
    expect(editor(window.page)).to_be_visible()
    assert all("401" in said for said in window.complaints)
    window.complaints.clear()


def test_typed_code_runs_and_its_value_is_shown(page: Page) -> None:
    editor(page).focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("def double(n):\nreturn n * 2\n\n", delay=5)
    page.keyboard.press("Backspace")
    page.keyboard.press("Shift+Tab")
    page.keyboard.type("\ndouble(21)", delay=5)
    page.keyboard.press("Control+Enter")
    expect(page.locator("fume-run").first.locator("fume-value")).to_have_text("42")
    assert page.locator("fume-editor .cm-line span").count() > 3  # highlighted


def test_output_is_seen_while_it_runs_and_escape_stops_it(page: Page) -> None:
    shown = run(page, "import time\nkept = 7\nfor n in range(10**9):\n    print('step', n)\n    time.sleep(0.3)")
    expect(shown.locator("pre")).to_contain_text("step 1")
    outcome(shown, "Running")
    shot(page, "running")
    page.keyboard.press("Escape")
    outcome(shown, "Stopped")
    shot(page, "stopped")
    expect(run(page, "kept").locator("fume-value")).to_have_text("7")


def test_what_prints_without_end_is_shown_in_part_and_can_be_stopped(page: Page) -> None:
    endless = "import sys\nprint('first')\nn = 0\nwhile n >= 0:\n    n += 1\n    print(n)\n"
    for more in ("    display(n)", "    print(n, file=sys.stderr)", ""):
        shown = run(page, endless + more)
        expect(shown.locator("p.muted", has_text="are not shown")).to_be_visible()
        page.get_by_role("button", name="Stop", exact=True).click()
        outcome(shown, "Stopped")
        expect(shown.locator("pre").first).to_contain_text("first")
        assert shown.locator("pre, fume-value").count() <= 1001


def test_the_stop_button_and_ctrl_dot_stop_too(page: Page) -> None:
    for stop in (lambda: page.get_by_role("button", name="Stop").click(), lambda: page.keyboard.press("Control+.")):
        shown = run(page, "print('on')\nwhile True: pass")
        expect(shown.locator("pre").first).to_contain_text("on")
        stop()
        outcome(shown, "Stopped")


def test_an_error_is_shown_with_its_traceback(page: Page) -> None:
    shown = run(page, "total = 0\n1 / total")
    outcome(shown, "Failed")
    expect(shown.locator("pre.stderr")).to_contain_text("ZeroDivisionError: division by zero")
    expect(shown.locator(".foot")).to_contain_text("exit code 1")
    shot(page, "error")


def test_markup_in_output_stays_text(page: Page) -> None:
    shown = run(page, "print('<img src=x onerror=alert(1)><b>bold</b>')")
    expect(shown.locator("pre")).to_have_text("<img src=x onerror=alert(1)><b>bold</b>\n")


def test_a_progress_bar_is_one_line(page: Page) -> None:
    shown = run(
        page, "import sys\nfor n in range(5): sys.stdout.write(f'\\r\\x1b[32m{n} of 4\\x1b[0m'); sys.stdout.flush()"
    )
    outcome(shown, "Done")
    expect(shown.locator("pre")).to_have_text("4 of 4")


def test_a_line_that_ends_in_a_return_is_started_anew_by_what_follows(page: Page) -> None:
    step = "    print(f'{n} of 4', end='\\r', flush=True)\n    time.sleep(0.1)\n"
    shown = run(page, f"import time\nfor n in range(5):\n{step}print(end='\\nnext')")
    outcome(shown, "Done")
    expect(shown.locator("pre")).to_have_text("4 of 4\nnext")


RETURNS = {
    "before a long line": "'\\r' + 'a' * 65000",
    "many": "'\\r' * 65000",
    "many in a line": "'\\r' * 65000 + 'a'",
}


@pytest.mark.parametrize("kind", RETURNS)
def test_returns_without_end_do_not_stop_the_page(page: Page, kind: str) -> None:
    many = f"for n in range(60): sys.stdout.write({RETURNS[kind]}); sys.stdout.flush()\n"
    shown = run(page, f"import sys\n{many}print('\\nthe last of it')")
    outcome(shown, "Done")
    expect(shown.locator("pre").last).to_contain_text("the last of it")


def test_a_plot_is_shown(page: Page) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `data`")
    shown = run(
        page,
        "import matplotlib.pyplot as plt\nplt.figure(figsize=(7, 3))\nplt.plot([1, 4, 9, 16])\nplt.show()\n"
        "plt.bar([1, 2], [3, 4])\nplt.savefig('/tmp/output/bars.png')\nplt.close()",
    )
    outcome(shown, "Done")
    expect(shown.locator("fume-value img")).to_have_count(2)  # shown, and saved
    for picture in shown.locator("fume-value img").all():
        expect(picture).to_have_js_property("complete", True)
        assert picture.evaluate("node => node.naturalWidth") > 100
    shot(page, "plot")


def test_a_table_is_shown_as_one(page: Page) -> None:
    pytest.importorskip("pandas", reason="needs the extra `data`")
    code = "import pandas as pd\npd.DataFrame({'city': ['Oslo', '<b>Lima</b>'] * 75, 'people': range(150)})"
    table = run(page, code).locator("fume-value table")
    expect(table.locator("th")).to_have_text(["city", "people"])
    expect(table.locator("tbody tr")).to_have_count(100)
    expect(table.locator("td").nth(2)).to_have_text("<b>Lima</b>")
    expect(page.locator("fume-value")).to_contain_text("The first 100 of 150 rows")
    shot(page, "table")


def test_html_of_a_program_is_shown_in_a_frame_that_can_do_nothing(page: Page) -> None:
    html = (
        '<style>h4 { color: rgb(170, 0, 0) }</style><h4>Styled</h4><p style="padding-left: 40px">by attribute</p>'
        "<script>top.document.title = document.title = 'taken'</script><img src=/healthz onerror=alert(1)>"
        "<form action=/execute method=post><button>send</button></form><iframe src=/></iframe>"
    )
    shown = run(page, f"class Rich:\n    def _repr_html_(self): return {html!r}\nRich()")
    frame = shown.locator("iframe")
    expect(frame).to_have_attribute("sandbox", "")
    inside = frame.content_frame
    expect(inside.locator("h4")).to_have_css("color", "rgb(170, 0, 0)")
    expect(inside.locator("p")).to_have_css("padding-left", "40px")
    expect(inside.locator("script, iframe, form, img[src]")).to_have_count(0)
    assert page.title() == "fumehood"
    shot(page, "html")


def test_html_of_a_program_keeps_what_is_of_use(page: Page) -> None:
    dot = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
    html = (
        "<style>#T_1 td.col0 { background-color: rgb(1, 2, 3) }</style>"
        '<table id="T_1"><tr><td class="col0">7</table>'
        f'<details open><summary>more</summary><i>inside</i></details><img alt="dot" src="{dot}">'
        '<math display="block"><mfrac><mi>a</mi><msup><mi>b</mi><mn>2</mn></msup></mfrac></math><frameset></frameset>'
    )
    shown = run(page, f"class Rich:\n    def _repr_html_(self): return {html!r}\nRich()")
    frame = shown.locator("iframe").first
    inside = frame.content_frame
    expect(inside.locator("td.col0")).to_have_css("background-color", "rgb(1, 2, 3)")
    expect(inside.locator("details i")).to_be_visible()
    expect(inside.locator("img")).to_have_js_property("naturalWidth", 1)
    expect(inside.locator("math mfrac msup mn")).to_be_visible()
    for policy in (
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "x-dns-prefetch-control",
        "no-referrer",
    ):
        assert policy in (frame.get_attribute("srcdoc") or "").partition("<body>")[0]
    served = page.request.get(page.url).headers
    assert (served["x-dns-prefetch-control"], served["referrer-policy"]) == ("off", "no-referrer")


def test_an_svg_is_a_picture_whose_script_does_not_run(page: Page) -> None:
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' width='120' height='60'><script>alert(1)</script>"
        "<rect width='120' height='60' fill='teal'/></svg>"
    )
    picture = run(page, f"class Drawn:\n    def _repr_svg_(self): return {svg!r}\nDrawn()").locator("fume-value img")
    expect(picture).to_have_js_property("naturalWidth", 120)


def test_a_csv_is_put_in_used_and_its_result_taken_out(page: Page, tmp_path: Path) -> None:
    data = tmp_path / "sales of june.csv"
    data.write_text("region,revenue\nnorth,120\nsouth,95\n", encoding="utf-8")
    page.get_by_role("tab", name="Files").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add files").click()
    chooser.value.set_files(data)
    expect(page.locator("fume-files li")).to_contain_text("sales of june.csv")
    shown = run(
        page,
        "import csv\nrows = list(csv.DictReader(open('sales of june.csv')))\n"
        "open('/tmp/output/sum.txt', 'w').write(str(sum(int(row['revenue']) for row in rows)))",
    )
    outcome(shown, "Done")
    with page.expect_download() as taken:
        shown.get_by_role("button", name="sum.txt").click()
    assert Path(taken.value.path()).read_bytes() == b"215"
    page.get_by_role("tab", name="Files").click()
    with page.expect_download() as taken:
        page.get_by_role("button", name="Download sales of june.csv").click()
    assert taken.value.suggested_filename == "sales of june.csv"
    assert Path(taken.value.path()).read_bytes() == data.read_bytes()
    shot(page, "files")


def test_a_dropped_file_is_put_into_the_session(page: Page) -> None:
    dropped = page.evaluate_handle(
        "() => { const all = new DataTransfer(); all.items.add(new File(['a,b\\n1,2\\n'], 'dropped.csv')); return all }"
    )
    for kind in ("dragenter", "dragover", "drop"):
        page.dispatch_event("body", kind, {"dataTransfer": dropped})
    expect(page.locator("fume-files li")).to_contain_text("dropped.csv")
    expect(page.locator(".drop")).to_have_count(0)
    page.get_by_role("button", name="Insert the path of dropped.csv").click()
    expect(editor(page)).to_contain_text('"dropped.csv"')


def test_files_are_named_as_they_are_and_more_than_are_sent_are_mentioned(page: Page) -> None:
    code = "for n in range(22): open(f'/tmp/output/{n}.txt', 'w').close()\nopen('\\u202egnp.exe', 'w').close()"
    shown = run(page, code)
    expect(shown.locator("p.muted", has_text="2 more files in /tmp/output")).to_be_visible()
    expect(run(page, "1").locator("p.muted")).to_have_count(0)
    page.get_by_role("tab", name="Files").click()
    expect(page.locator("fume-files li", has_text="\\u{202e}gnp.exe")).to_be_visible()
    expect(page.locator("fume-files li")).to_have_count(23)


def test_files_that_cannot_be_had_are_listed_with_the_reason(page: Page) -> None:
    links = "import os\nfor n in range(150): os.symlink('/etc/passwd', f'/tmp/output/{n}')\n"
    shown = run(page, f"{links}open('/tmp/output/kept', 'w').close()")
    expect(shown.locator("p.muted", has_text="150 more files in /tmp/output")).to_be_visible()
    page.get_by_role("tab", name="Files").click()
    listed = page.get_by_role("list", name="Cannot be downloaded").locator("li")
    expect(listed).to_have_count(101)
    expect(listed.filter(has_text="link")).to_have_count(100)
    expect(listed.last).to_have_text(re.compile(r"…\s*50 more"))
    expect(page.get_by_role("button", name="Download")).to_have_count(1)
    expect(page.get_by_role("button", name="Download kept")).to_be_visible()


def test_history_has_each_run_with_its_receipt(page: Page) -> None:
    outcome(run(page, "print('remember me')"), "Done")
    page.get_by_role("tab", name="History").click()
    row = page.locator("fume-history .row", has_text="remember me").first
    row.click()
    detail = page.locator("fume-history .detail")
    expect(detail.locator("pre").nth(1)).to_have_text("remember me\n")
    receipt = detail.locator("fume-receipt")
    expect(receipt.locator("li")).to_have_count(9)
    expect(receipt.get_by_role("img")).to_have_attribute("aria-label", re.compile("of 9 axes"))
    shot(page, "history")
    page.get_by_role("tab", name="Output").click()
    page.locator("fume-run").first.get_by_role("button", name="Receipt").click()
    expect(page.locator("fume-receipt-dialog dialog")).to_contain_text("Network")
    shot(page, "receipt")


def test_sessions_are_started_switched_and_ended(page: Page) -> None:
    outcome(run(page, "place = 'first'"), "Done")
    page.locator("fume-sessions .opener").click()
    page.get_by_role("button", name="Start a new session").click()
    expect(page.locator("fume-run")).to_have_count(0)
    outcome(run(page, "place"), "Failed")
    page.locator("fume-sessions .opener").click()
    expect(page.locator("fume-sessions li")).to_have_count(2)
    shot(page, "sessions")
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Output").focus()
    page.keyboard.press("s")
    expect(page.locator("fume-sessions .choose[aria-current]")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("fume-sessions .opener")).to_be_focused()
    page.keyboard.press("Enter")
    page.locator("fume-sessions .choose").first.click()
    expect(run(page, "place").locator("fume-value")).to_have_text("'first'")
    page.locator("fume-sessions .opener").click()
    page.locator("fume-sessions li").first.get_by_role("button", name="End").click()
    expect(page.locator("fume-sessions li")).to_have_count(1)
    expect(page.locator("fume-sessions .opener")).to_have_text("No session yet")


def test_a_session_that_ended_elsewhere_is_said_and_the_next_run_has_a_new_one(
    open_page: Callable[..., Opened], server: Running
) -> None:
    end_all(server, "bob")
    window = open_page()
    page = window.enter(server, "bob")
    leave_a_file(page)
    end_all(server, "bob")
    shown = run(page, "2")
    expect(shown.get_by_role("alert")).to_be_visible()
    shot(page, "ended")
    expect(run(page, "3").locator("fume-value")).to_have_text("3")
    assert all("404" in said or "410" in said for said in window.complaints)
    window.complaints.clear()


def test_a_session_that_is_found_to_have_ended_is_said(open_page: Callable[..., Opened], server: Running) -> None:
    end_all(server, "bob")
    window = open_page()
    page = window.enter(server, "bob")
    leave_a_file(page)
    page.locator("fume-sessions .opener").click()
    page.get_by_role("button", name="Start a new session").click()
    expect(page.locator("fume-run")).to_have_count(0)
    end_all(server, "bob")
    page.locator("fume-sessions .opener").click()
    page.locator("fume-sessions .choose").first.click()
    expect(page.get_by_role("alert")).to_contain_text("This session has ended")
    expect(page.locator("fume-sessions .opener")).to_have_text("No session yet")
    outcome(page.locator("fume-run").first, "Done")  # what ran there stays in view
    assert all("404" in said or "410" in said for said in window.complaints)
    window.complaints.clear()


def test_a_quota_is_said_with_what_to_do(open_page: Callable[..., Opened], start: Callable[..., Running]) -> None:
    server = start(tokens=[{"name": "alice", "token": TOKENS["alice"], "max_sessions": 1}])
    window = open_page()
    page = window.enter(server)
    outcome(run(page, "1"), "Done")
    page.locator("fume-sessions .opener").click()
    page.get_by_role("button", name="Start a new session").click()
    expect(page.locator("fume-sessions .notice")).to_contain_text("Too many at once")
    shot(page, "quota")
    assert [said for said in window.complaints if "429" not in said] == []
    window.complaints.clear()


def test_a_server_that_is_gone_is_said_and_found_again(
    open_page: Callable[..., Opened], start: Callable[..., Running]
) -> None:
    with held_port() as port:
        _server_is_gone_and_found_again(open_page(), start, port)


def _server_is_gone_and_found_again(window: Opened, start: Callable[..., Running], port: str) -> None:
    server = start("--port", port)
    page = window.enter(server)
    shown = run(page, LASTING["code"])
    expect(shown.locator("pre")).to_have_text("here\n")
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    expect(shown.get_by_role("alert")).to_contain_text("broke before the run ended")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".banner")).to_contain_text("does not answer")
    shot(page, "gone")
    start("--port", port)
    expect(page.locator(".banner")).to_have_count(0)
    expect(page.locator("fume-sessions .opener")).to_have_text("No session yet")
    expect(page.locator("fume-run")).to_have_count(2)  # what came out stays, although its session is gone
    expect(run(page, "6 * 7").locator("fume-value")).to_have_text("42")
    assert all("ERR_" in said or "404" in said for said in window.complaints), window.complaints
    window.complaints.clear()


def test_a_phone_shows_one_column_without_sideways_scrolling(open_page: Callable[..., Opened], server: Running) -> None:
    page = open_page(
        viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True, device_scale_factor=2
    ).enter(server)
    write(page, "print('wide ' * 60)\nprint('x' * 400)\n{'a': list(range(60))}")
    page.get_by_role("button", name="Run", exact=True).tap()
    outcome(page.locator("fume-run").first, "Done")
    for tab, filled in {"Output": "fume-run", "Files": "fume-files", "History": "fume-history .row"}.items():
        page.get_by_role("tab", name=tab).tap()
        expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
        expect(page.locator(filled).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        shot(page, f"phone-{tab.lower()}", full_page=True)
    top, below = page.locator("section.card").bounding_box(), page.locator("section.side").bounding_box()
    assert top is not None
    assert below is not None
    assert top["y"] + top["height"] <= below["y"]
    page.get_by_role("button", name="Keys and help").tap()
    shot(page, "phone-help")


def test_dark_follows_the_system_and_can_be_chosen(open_page: Callable[..., Opened], server: Running) -> None:
    page = open_page(color_scheme="dark").enter(server)
    dark = background(page)
    outcome(run(page, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n[1, 2]"), "Done")
    shot(page, "dark")
    card = page.locator("section.card")
    page.emulate_media(color_scheme="light")
    expect(card).not_to_have_css("background-color", dark)
    page.get_by_role("button", name="Theme: system").click()
    expect(card).to_have_css("background-color", dark)
    page.reload()
    expect(editor(page)).to_be_visible()
    expect(card).to_have_css("background-color", dark)


def walk(page: Page) -> list[str]:
    """What Tab reaches from here, up to the end or the editor, which keeps Tab. Each must show its focus."""
    names: list[str] = []
    while len(names) < 30:
        page.keyboard.press("Tab")
        name, seen = page.evaluate(FOCUSED)
        if not name:
            break
        assert seen, name
        names.append(name)
        if name == "Python code":
            break
    return names


def test_all_of_it_works_without_a_mouse(page: Page) -> None:
    expect(editor(page)).to_be_focused()
    write(page, "print('by keys')")
    page.keyboard.press("Control+Enter")
    outcome(page.locator("fume-run").first, "Done")
    page.keyboard.press("Escape")  # leaves the editor
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_focused()
    page.keyboard.press("f")
    expect(page.get_by_role("tab", name="Files")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="History")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys and help")).to_be_visible()
    shot(page, "help")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys and help")).to_be_hidden()
    page.keyboard.press("s")
    expect(page.get_by_role("dialog", name="Sessions")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Sessions")).to_be_hidden()
    wanted = {"Receipt", "stdout", "Put its code in the editor"}
    wanted |= {"Sessions", "Isolation", "Theme", "Keys and help", "Run", "Time limit", "Python code"}
    reached: set[str] = set()

    def all_are_reached() -> bool:  # what is drawn anew meanwhile ends a walk early
        page.keyboard.press("Escape")  # leaves the editor
        page.keyboard.press("o")
        expect(page.get_by_role("tab", name="Output")).to_be_focused()
        reached.update(walk(page))  # to the end of the page
        reached.update(walk(page))  # and from its beginning to the editor
        return wanted <= reached

    assert wait_until(all_are_reached), wanted - reached
    page.keyboard.press("Escape")
    page.keyboard.press("e")
    expect(editor(page)).to_be_focused()


def test_the_policy_allows_no_inline_script_and_no_other_host(server: Running) -> None:
    with server.client() as client:
        policies = [client.get("/").headers["content-security-policy"] for _ in range(2)]
    assert policies[0] != policies[1]  # a nonce for each
    rules = dict(rule.strip().split(" ", 1) for rule in policies[0].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == "'self'"
    assert rules["connect-src"] == "'self'"
    assert "unsafe" not in policies[0]
    assert "http" not in policies[0]
