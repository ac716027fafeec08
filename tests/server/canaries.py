"""Markup that makes a browser fetch, look up a name or connect, and a listener that notices."""

# ruff: noqa: E501

from __future__ import annotations

import asyncio
import json
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

# In each, U is the address of a host of its own, H that host with its port, SVG and BASE the drawing below.
# What must be noticed where nothing holds it, in any Chromium: the control arm fails without.
FETCHES = {
    "iframe": '<iframe src="U"></iframe>',
    "shadow-iframe": '<div><template shadowrootmode="open"><iframe src="U"></iframe></template></div>',
    "shadow-img": '<div><template shadowrootmode="open"><img src="U"></template></div>',
    "shadow-link": '<div><template shadowrootmode="closed"><link rel="stylesheet" href="U"></template></div>',
    "shadow-in-shadow": '<p><template shadowrootmode="open"><p><template shadowrootmode="open"><img src="U"></template>',
    "img": '<img src="U">',
    "img-relative-scheme": '<img src="//H/">',
    "img-srcset": '<img srcset="U 1x, U?2 2x">',
    "image-tag": '<image src="U">',
    "picture": '<picture><source srcset="U"><img alt=""></picture>',
    "link-preconnect": '<link rel="preconnect" href="U">',
    "link-dns-prefetch": '<link rel="dns-prefetch" href="U">',
    "link-stylesheet": '<link rel="stylesheet" href="U">',
    "link-preload": '<link rel="preload" as="image" href="U">',
    "link-imagesrcset": '<link rel="preload" as="image" imagesrcset="U 1x" href="data:,">',
    "link-modulepreload": '<link rel="modulepreload" href="U">',
    "link-in-body": '<body><p>x<link rel="preconnect" href="U" crossorigin></p>',
    "meta-refresh": '<meta http-equiv="refresh" content="0;url=U">',
    "base": '<base href="U"><img src="x.png">',
    "script": '<script src="U"></script>',
    "script-fetch": '<script>fetch("U", {mode: "no-cors"})</script>',
    "handler": '<img src="data:," onerror="new Image().src = \'U\'">',
    "object": '<object data="U"></object>',
    "embed": '<embed src="U">',
    "video": '<video src="U" preload="auto" autoplay muted></video>',
    "video-poster": '<video poster="U"></video>',
    "audio": '<audio src="U" preload="auto"></audio>',
    "media-source": '<video preload="auto"><source src="U"></video>',
    "input-image": '<input type="image" src="U">',
    "body-background": '<body background="U">text',
    "table-background": '<table background="U"><tr><td>cell</table>',
    "cell-background": '<table><tr><td background="U">cell</table>',
    "frameset": '<frameset><frame src="U"></frameset>',
    "iframe-srcdoc": "<iframe srcdoc=\"<img src='U'>\"></iframe>",
    "iframe-data": "<iframe src=\"data:text/html,<img src='U'>\"></iframe>",
    "style-import": '<style>@import "U";</style>',
    "style-import-url": "<style>@import url(U) screen;</style>",
    "style-background": "<style>p { background: url(U) }</style><p>text</p>",
    "style-nested": "<style>div { & p { background: url(U) } }</style><div><p>text</p></div>",
    "style-media": "<style>@media all { p { background: url(U) } }</style><p>text</p>",
    "style-supports": "<style>@supports (color: red) { p { background: url(U) } }</style><p>text</p>",
    "style-layer": "<style>@layer a { p { background: url(U) } }</style><p>text</p>",
    "style-escaped": r"<style>p { background: u\72l('U') }</style><p>text</p>",
    "style-escaped-at": r'<style>@\69mport "U";</style>',
    "style-variable": "<style>:root { --x: url(U) } p { background: var(--x) }</style><p>text</p>",
    "style-fallback": "<style>p { background: var(--none, url(U)) }</style><p>text</p>",
    "style-image-set": '<style>p { background: image-set("U" 1x) }</style><p>text</p>',
    "style-webkit-image-set": "<style>p { background: -webkit-image-set(url(U) 1x) }</style><p>text</p>",
    "style-cross-fade": "<style>p { background: -webkit-cross-fade(url(U), url(U), 50%) }</style><p>text</p>",
    "style-font-face": "<style>@font-face { font-family: f; src: url(U) } p { font-family: f }</style><p>text</p>",
    "style-list": "<style>li { list-style: url(U) }</style><ul><li>text</ul>",
    "style-content": "<style>p::before { content: url(U) }</style><p>text</p>",
    "style-border": "<style>p { border: 9px solid; border-image: url(U) 9 }</style><p>text</p>",
    "style-mask": "<style>p { mask: url(U) }</style><p>text</p>",
    "style-shape": "<style>p { float: left; shape-outside: url(U) }</style><p>text</p>",
    "style-keyframes": "<style>@keyframes k { to { background: url(U) } } p { animation: k 1s both }</style><p>text</p>",
    "style-unclosed": "<p>text</p><style>p { background: url(U",
    "attribute-background": '<p style="background: url(U)">text</p>',
    "attribute-escaped": r'<p style="background: \75\72\6c(U)">text</p>',
    "attribute-entity": '<p style="background: &#117;rl(U)">text</p>',
    "attribute-variable": '<p style="--x: url(U); background-image: var(--x)">text</p>',
    "attribute-image-set": "<p style=\"background-image: image-set('U' 1x)\">text</p>",
    "attribute-uppercase": '<P STYLE="BACKGROUND: URL(U)">text</P>',
    "attribute-on-svg": '<svg><rect width="9" height="9" style="mask: url(U)"/></svg>',
    "svg-image": '<svg><image href="U" width="9" height="9"/></svg>',
    "svg-image-xlink": '<svg><image xlink:href="U" width="9" height="9"/></svg>',
    "svg-feimage": '<svg><filter id="f"><feImage href="U"/></filter><rect filter="url(#f)" width="9" height="9"/></svg>',
    "svg-style": "<svg><style>rect { background: url(U); mask: url(U) }</style><rect width='9' height='9'/></svg>",
    "svg-style-import": '<svg><style>@import "U";</style></svg>',
    "svg-foreign": '<svg><foreignObject width="9" height="9"><img src="U"></foreignObject></svg>',
    "svg-set": '<svg><image width="9" height="9"><set attributeName="href" to="U"/></image></svg>',
    "svg-animate": '<svg><image width="9" height="9"><animate attributeName="href" values="U" dur="9s"/></image></svg>',
    "svg-script": '<svg><script href="U"></script></svg>',
    "svg-desc": '<svg><desc><img src="U"></desc></svg>',
    "svg-breakout": '<svg><p><img src="U"></p></svg>',
    "math-breakout": "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src='U'&gt;\" src='U'>",
    "select-breakout": '<select><template shadowrootmode="open"></template></select><img src="U">',
    "comment-breakout": '<!--><img src="U">-->',
    "noscript": '<noscript><p title="</noscript><img src=U>"></noscript><img src="U">',
    "table-fostered": '<table><img src="U"><tr><td>x</table>',
    "form-in-form": '<form><div></form><form id="g"><img src="U"></form>',
    "html-again": '<html background="U"><body background="U">text',
    "svg-document": '<iframe src="data:image/svg+xml,SVG"></iframe>',
    "attribution": '<img src="data:," attributionsrc="U"><img src="U">',
}
# What stands for itself only where nothing is before it.
FIRST = {"body-background", "frameset", "html-again", "html-manifest", "head-profile"}
# What would be too deep for a browser to read as it is, and is shown as text; and what leaves nothing to show.
AS_TEXT = {"mutation-deep"}
NOTHING = {"frameset", "html-manifest", "head-profile"}
# What Chromium may or may not fetch there; through the page, none of it may be.
OTHERS = {
    "template": '<template><img src="U"><template><iframe src="U"></iframe></template></template>',
    "shadow-old": '<div><template shadowroot="open"><img src="U"></template></div>',
    "link-prefetch": '<link rel="prefetch" href="U">',
    "link-prerender": '<link rel="prerender" href="U">',
    "link-icon": '<link rel="icon" href="U">',
    "link-manifest": '<link rel="manifest" href="U">',
    "link-header": '<meta http-equiv="Link" content="<U>; rel=preconnect">',
    "link-dictionary": '<link rel="compression-dictionary" href="U">',
    "meta-prefetch-control": '<meta http-equiv="x-dns-prefetch-control" content="on"><a href="U">link</a>',
    "anchor": '<a href="U">link</a>',
    "anchor-ping": '<a href="data:," ping="U">link</a>',
    "area": '<map name="m"><area href="U" shape="default" ping="U"></map><img usemap="#m" src="data:,">',
    "form": '<form action="U"><button>send</button><input autofocus></form>',
    "button-formaction": '<form><button formaction="U">send</button></form>',
    "input-formaction": '<form><input type="submit" formaction="U"></form>',
    "speculation": '<script type="speculationrules">{"prefetch": [{"urls": ["U"], "eagerness": "immediate"}]}</script>',
    "speculation-meta": '<meta http-equiv="Speculation-Rules" content=\'"U"\'>',
    "importmap": '<script type="importmap">{"imports": {"a": "U"}}</script>',
    "portal": '<portal src="U"></portal>',
    "fencedframe": '<fencedframe src="U"></fencedframe>',
    "iframe-blob": '<iframe src="blob:U"></iframe>',
    "track": '<video><track default src="U" kind="captions"></video>',
    "applet": '<applet code="U" codebase="U"></applet>',
    "quote-cite": '<blockquote cite="U">text</blockquote><q cite="U">text</q>',
    "img-old": '<img lowsrc="U" dynsrc="U" longdesc="U">',
    "html-manifest": '<html manifest="U">',
    "head-profile": '<head profile="U">',
    "svg-use": '<svg><use href="U#x"/></svg>',
    "svg-use-data": "<svg><use href=\"data:image/svg+xml,<svg id='x' xmlns='http://www.w3.org/2000/svg'><image href='U'/></svg>#x\"/>",
    "svg-anchor": '<svg><a href="U"><text y="9">link</text></a></svg>',
    "svg-fill": '<svg><rect width="9" height="9" fill="url(U#f)" filter="url(U#f)" clip-path="url(U#c)"/></svg>',
    "svg-marker": '<svg><path d="M0 0L9 9" marker-end="url(U#m)" mask="url(U#m)"/></svg>',
    "svg-gradient": '<svg><linearGradient id="g" href="U#g"/><rect width="9" height="9" fill="url(#g)"/></svg>',
    "svg-cursor": '<svg><cursor href="U"/><rect cursor="url(U), auto" width="9" height="9"/></svg>',
    "svg-handler": '<svg onload="new Image().src = \'U\'"><set attributeName="x" onbegin="fetch(\'U\')"/></svg>',
    "svg-link": '<svg><link xmlns="http://www.w3.org/1999/xhtml" rel="preconnect" href="U"/></svg>',
    "svg-image-svg": '<svg><image href="data:image/svg+xml,SVG" width="9" height="9"/></svg>',
    "svg-image-relative": '<svg xml:base="U"><image href="x.png" width="9" height="9"/><image xlink:href="//H/" width="9" height="9"/></svg>',
    "svg-image-twice": '<svg><image href="data:image/png;base64,U" xlink:href="U" src="U" width="9" height="9"/></svg>',
    "svg-image-breakout": '<svg><mask id="m"><image href="U"/><p><image href="U" src="U"></p></mask></svg>',
    "svg-pattern-image": '<svg><pattern id="p" width="9" height="9" href="U#p"><image href="U" width="9" height="9"/></pattern><rect fill="url(#p)" width="9" height="9"/></svg>',
    "svg-mask-image": '<svg><mask id="m"><image xlink:href="U" width="9" height="9"/></mask><rect mask="url(#m)" width="9" height="9"/></svg>',
    "svg-marker-image": '<svg><marker id="m"><image href="U" width="9" height="9"/></marker><path d="M0 0L9 9" marker-end="url(#m)"/></svg>',
    "svg-filter-image": '<svg><filter id="f" href="U#f"><feImage xlink:href="U"/><feImage href="#x"/></filter><rect id="x" filter="url(#f)" width="9" height="9"/></svg>',
    "svg-text-path": '<svg><text><textPath href="U#p" path="U">x</textPath></text><switch><image href="U" systemLanguage="en"/></switch></svg>',
    "math-href": '<math href="U"><mi href="U" xlink:href="U">x</mi></math>',
    "math-annotation": '<math><annotation-xml encoding="text/html"><img src="U"></annotation-xml></math>',
    "style-cursor": "<style>p { cursor: url(U), auto }</style><p>text</p>",
    "style-filter": "<style>p { filter: url(U#f); clip-path: url(U#c) }</style><p>text</p>",
    "style-namespace": "<style>@namespace a url(U);</style>",
    "style-document": "<style>@-moz-document url(U) { p { color: red } }</style>",
    "style-src": '<style>p { background: src("U") }</style><p>text</p>',
    "style-image": '<style>p { background: image("U") }</style><p>text</p>',
    "style-attr": '<style>p { background: image-set(attr(title)) }</style><p title="U">text</p>',
    "style-attr-type": '<style>p { background: attr(title type(<url>)) }</style><p title="url(U)">text</p>',
    "style-property": "<style>@property --p { syntax: '<url>'; inherits: true; initial-value: url(U) }</style>",
    "style-end-in-string": '<style>p[title="</style><img src=U>"] { color: red }</style>',
    "style-end-in-selector": r'<style>p[title="\3c/style\3e\3clink rel=preconnect href=U\3e"] { color: red }</style><p>x</p>',
    "style-end-in-value": r'<style>p::after { content: "\3c/style\3e\3cimg src=U\3e" }</style><p>x</p>',
    "style-open-string": '<style>p { --x: "a</style><style>p { --y: "; background: url(U) }</style><p>text</p>',
    # These ask for the page itself, where it is: nothing is fetched, but the browser complains of it.
    "style-within": "<style>p { background: url(#x); list-style: url(#x); border-image: url(#x) 9; cursor: url(#x), auto; shape-outside: url(#x); float: left }"
    "p::before { content: url(#x) } li { list-style-image: url('#x') }</style><p>text</p><ul><li>text</ul>",
    "style-within-variable": "<style>p { --x: url(#x); background: var(--x) }</style><p>text</p>",
    "attribute-within": '<p style="background: url(#x)">text</p><b style="background-image: url(#y), linear-gradient(red, red)">text</b>',
    "svg-within": '<svg><rect style="background: url(#x); cursor: url(#x), auto; mask: url(#x); fill: url(#x)" cursor="url(#x)" width="9" height="9"/></svg>',
    "style-behavior": "<style>p { behavior: url(U); -moz-binding: url(U) }</style><p>text</p>",
    "attribute-closed": '<p style="color: red} p { background: url(U)">text</p>',
    "attribute-twice": '<p data-fume="1" data-fume-style="background: url(U)" style="color: red">text</p>',
    "attribute-comment": '<p style="background: u/**/rl(U); background: url/**/(U)">text</p>',
    "img-svg": '<img src="data:image/svg+xml,SVG">',
    "img-svg-base64": '<img src="data:image/svg+xml;base64,BASE">',
    "img-svg-shadow": '<p><template shadowrootmode="open"><img src="data:image/svg+xml,SVG"></template>',
    "xmp": '<xmp><img src="U"></xmp><xmp>@import "U";</xmp>',
    "plaintext": '<plaintext><img src="U">',
    "listing": '<listing><img src="U"',
    "noembed": '<noembed><img src="U"></noembed><noframes><img src="U"></noframes>',
    "textarea": '<textarea><img src="U"></textarea><title><img src="U"></title>',
    "mutation-mglyph": "<form><math><mtext></form><form><mglyph><style></math><img src=U>",
    "mutation-style": "<svg></p><style><a id=\"</style><img src='U'>\">",
    "mutation-noscript": "<noscript><style></noscript><img src='U'>",
    "mutation-title": "<math><mi><table><mi><mglyph><title><!--</title><img src='U'>--></title>",
    "mutation-cdata": "<svg><![CDATA[><img src='U'>]]></svg>",
    "mutation-processing": "<?xml-stylesheet href='U'?><?x ><img src='U'>?>",
    "mutation-deep": "<div>" * 520 + "<svg><p><style><img src='U'></style>",
    "mutation-comment": "<!-- --!><link rel=preconnect href='U'> -->",
    "input-autofocus": '<input type="image" formaction="U" src="U" type="checkbox">',
    "dialog": '<dialog open><img src="U"></dialog><menu><img src="U"></menu>',
    "custom": '<x-y src="U" href="U" style="background: url(U)"></x-y>',
    "popover": '<div popover style="background: url(U)">x</div><button commandfor="U">x</button>',
    "webview": '<webview src="U"></webview><bgsound src="U"><layer src="U"></layer><ilayer src="U"></ilayer>',
}
# Text in HTML, markup in a drawing.
RAW = ("iframe", "noembed", "noframes", "plaintext", "script", "style", "textarea", "title", "xmp")
OTHERS |= {
    f"{drawing}-{name}": f'<{drawing}><{name}><style><img src="U"></style><g style="background: url(U)" onclick="x()"/></{name}></{drawing}>'
    for drawing in ("svg", "math")
    for name in RAW
}
ALL = {**FETCHES, **OTHERS}
SVG = (
    "<?xml version='1.0'?><?xml-stylesheet type='text/css' href='U?1'?><!DOCTYPE svg SYSTEM 'U?2'>"
    "<svg xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink' width='90' height='60' onload='fetch(\"U\")'>"
    "<style>@import 'U?3'; rect { mask: url(U?4) }</style><link xmlns='http://www.w3.org/1999/xhtml' rel='preconnect' href='U'/>"
    "<image xlink:href='U?5' width='9' height='9'/><use href='U?6#x'/><script href='U?7'/><rect width='90' height='60' fill='teal'/>"
    "<foreignObject width='9' height='9'><img xmlns='http://www.w3.org/1999/xhtml' src='U?8'/></foreignObject>"
    "<filter id='f'><feImage href='U?9'/></filter><a href='U'><text filter='url(#f)'>x</text></a></svg>"
)


def filled(label: str, prefix: str, port: int) -> str:
    """The markup of this label, with a host of its own, and before it the sign that it is shown."""
    markup = ALL[label]
    host = f"{prefix}-{label}.localhost:{port}"
    drawing = SVG.replace("U", f"http://{host}/")
    markup = markup.replace("SVG", quote(drawing)).replace("BASE", b64encode(drawing.encode()).decode())
    sign = "" if label in FIRST else f"<b>{label}</b>"
    return sign + re.sub(r"\bU(?![A-Z])", f"http://{host}/", re.sub(r"\bH\b", host, markup))


class Listener:
    """Counts what connects, whether or not it then says something."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0
        self.document = b""  # what it shows at /

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            asked = await reader.readuntil(b"\r\n\r\n")
            is_own = asked.startswith(b"GET / ") and b"\r\nHost: 127.0.0.1" in asked
            status, body = (b"200 OK", self.document) if is_own else (b"404 Not Found", b"")
            head = b"HTTP/1.1 %b\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            writer.write(head % (status, len(body)) + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def listen(self, ready: Callable[[tuple[asyncio.AbstractEventLoop, asyncio.Event]], None]) -> None:
        done = asyncio.Event()
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        ready((asyncio.get_running_loop(), done))
        await done.wait()
        server.close()


@contextmanager
def listening() -> Iterator[Listener]:
    """In a thread of its own, for the browser's driver has the loop of this one."""
    listener: Listener = Listener()
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(listener.listen(ready.set_result)))
    thread.start()
    loop, done = ready.result()
    try:
        yield listener
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()


def named(net_log: Path, prefix: str) -> set[str]:
    """The labels of the hosts that the browser's own log of its network has so far, whatever it did with them."""
    return set(re.findall(rf"\b{prefix}-([a-z0-9-]+)(?=\.localhost)", net_log.read_text("utf-8", "replace")))


def looked_up(net_log: Path, prefix: str) -> set[str]:
    """The labels of the hosts that its resolver was asked for, from the log of a browser that has ended."""
    log = json.loads(net_log.read_text("utf-8"))
    kind = log["constants"]["logEventTypes"]["HOST_RESOLVER_MANAGER_REQUEST"]
    asked = [event["params"].get("host", "") for event in log["events"] if event["type"] == kind and "params" in event]
    return {found[1] for host in asked if (found := re.search(rf"\b{prefix}-([a-z0-9-]+)\.localhost", host))}
