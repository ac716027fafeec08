/** Markup that a program made, reduced to what is listed here: nothing of the rest can be shown, run or fetched.
 *
 * It is read in documents without a window, where a browser fetches nothing. No element and no attribute that names an
 * address is kept, but for pictures whose data is in the address itself. What a browser would read differently the second
 * time is cleaned again until it stays the same, or shown as text. So is what would take a browser without end to read.
 *
 * Before that, styles, handlers, <base> and <track> get other names, or the browser would report each to the console as against the policy.
 * What this misses is cleaned all the same.
 */

import DOMPurify from "dompurify";
import { cleanDeclarations, cleanSheet, isInert, pointless } from "./css.js";
import { DEPTH, MOST, cut, renamed, tooMuch } from "./markup.js";
import { MATCHING, matching } from "./matching.js";
import { LIMIT, repeated, unrepeated } from "./references.js";

const HTML = "http://www.w3.org/1999/xhtml";
const SVG = "http://www.w3.org/2000/svg";
const words = (text: string) => text.trim().split(/\s+/);

const TEXT = words(`a abbr address article aside b bdi bdo big blockquote br caption center cite code col colgroup data dd del details
  dfn div dl dt em figcaption figure font footer h1 h2 h3 h4 h5 h6 header hr i img input ins kbd label li main mark meter nav
  nobr ol p pre progress q rp rt ruby s samp section small span strike strong sub summary sup table tbody td tfoot th thead
  time tr tt u ul var wbr`);
const DRAWN = words(`svg circle clipPath defs ellipse g line linearGradient path polygon polyline radialGradient rect stop symbol
  text tspan use`);
const MATH = words(`math menclose merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt
  mstyle msub msubsup msup mtable mtd mtext mtr munder munderover semantics`);
const PAINTED = words(`feBlend feColorMatrix feComponentTransfer feComposite feConvolveMatrix feDiffuseLighting feDisplacementMap
  feDistantLight feDropShadow feFlood feFuncA feFuncB feFuncG feFuncR feGaussianBlur feMerge feMergeNode feMorphology feOffset
  fePointLight feSpecularLighting feSpotLight feTile feTurbulence filter image marker mask pattern switch textPath`);

const OF_TEXT = words(`abbr align alt bgcolor border cellpadding cellspacing checked class color colspan datetime dir disabled face
  for frame headers height hidden high id lang low max min nowrap open optimum reversed role rowspan rules scope size span start
  summary title type valign value width`);
const OF_DRAWN = words(`class clip-path clip-rule clipPathUnits color cx cy d direction dominant-baseline alignment-baseline
  baseline-shift display dx dy fill fill-opacity fill-rule focusable font-family font-size font-stretch font-style font-variant
  font-weight fx fy fr gradientTransform gradientUnits height href id lengthAdjust letter-spacing marker-end marker-mid
  marker-start mask offset opacity overflow paint-order pathLength points preserveAspectRatio r role rotate rx ry
  shape-rendering spreadMethod stop-color stop-opacity stroke stroke-dasharray stroke-dashoffset stroke-linecap stroke-linejoin
  stroke-miterlimit stroke-opacity stroke-width text-anchor text-decoration text-rendering textLength transform
  transform-origin vector-effect version viewBox visibility width word-spacing writing-mode x x1 x2 xlink:href xml:space y y1
  y2`);
const OF_PAINTED = words(`amplitude azimuth baseFrequency bias color-interpolation color-interpolation-filters diffuseConstant
  divisor edgeMode elevation exponent filter filterUnits flood-color flood-opacity image-rendering in in2 intercept isolation
  k1 k2 k3 k4 kernelMatrix limitingConeAngle lighting-color markerHeight markerUnits markerWidth maskContentUnits maskUnits
  mix-blend-mode mode numOctaves operator order orient patternContentUnits patternTransform patternUnits pointsAtX pointsAtY
  pointsAtZ preserveAlpha primitiveUnits radius refX refY result scale seed slope specularConstant specularExponent startOffset
  stdDeviation stitchTiles surfaceScale tableValues targetX targetY values xChannelSelector yChannelSelector z`);
const OF_MATH = words(`accent accentunder columnalign columnspan depth display displaystyle fence largeop linethickness lspace
  mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits notation rowalign rspace scriptlevel separator
  stretchy symmetric voffset`);
// What these hold is not text to be read where they are left out.
const MUTE = words(`annotation annotation-xml audio base canvas desc embed fencedframe foreignObject frameset head iframe link meta metadata noembed
  noframes noscript object plaintext portal script select style template textarea title video xmp`);

const BITMAP = /^data:image\/(png|jpe?g|gif|webp|avif|bmp|x-icon);base64,([a-z0-9+/=\s]*)$/i;
const VECTORS = /^data:image\/svg\+xml((?:;[\w=-]+)*),(.*)$/is;
const ROUNDS = 5;
const SPANS = ["colspan", "columnspan", "rowspan", "span"];
const CELLS = 1_000_000; // that spans make
const MOST_DRAWN = 4 * MOST; // a plot of many points has a line for each
const SHEET = { html: "xmp", svg: "glyph" }; // read like <style>, and of no other use here

const COMMON = { ALLOW_DATA_ATTR: false, ALLOW_UNKNOWN_PROTOCOLS: false, ADD_URI_SAFE_ATTR: ["data-fume-style"], RETURN_TRUSTED_TYPE: false };
const FOR_TEXT = {
  ...COMMON,
  ALLOWED_TAGS: [...TEXT, ...DRAWN, ...PAINTED, ...MATH],
  ALLOWED_ATTR: [...OF_TEXT, ...OF_DRAWN, ...OF_PAINTED, ...OF_MATH, "src", "data-fume-style"],
  FORBID_CONTENTS: MUTE,
  FORCE_BODY: true,
  RETURN_DOM: true as const,
};
const FOR_SVG = {
  ...COMMON,
  ALLOWED_TAGS: [...DRAWN, ...PAINTED, SHEET.svg],
  ALLOWED_ATTR: [...OF_DRAWN, ...OF_PAINTED, "data-fume-style"],
  FORBID_CONTENTS: MUTE,
  IN_PLACE: true as const,
  NAMESPACE: SVG,
  PARSER_MEDIA_TYPE: "application/xhtml+xml" as const,
};

const ofText = DOMPurify(window);
const ofSvg = DOMPurify(window);

/** What is found while a text is cleaned. */
interface Found {
  sheets: string[];
  rules: string[]; // of styles in attributes; each has a name of its own, by which a browser finds it at once
  links: [Element, string][];
  isOurs: boolean; // cleaned once already: its marks are ours
  repeated: number; // elements, in the drawings that are images in it
}
let found: Found = { sheets: [], rules: [], links: [], isOurs: false, repeated: 0 };

ofText.addHook("uponSanitizeElement", (node, data) => {
  if (data.tagName === SHEET.html) found.sheets.push(cleanSheet(node.textContent ?? ""));
});
ofText.addHook("uponSanitizeAttribute", (node, data) => {
  const { attrName: name, attrValue: value } = data;
  if (name === "data-fume-style") {
    const kept = cleanDeclarations(value);
    if (kept) found.rules.push(`[data-fume-${mark(node)}]{${kept}}`);
    data.keepAttr = false;
  } else if (/^data-fume-\d+$/.test(name)) data.forceKeepAttr = found.isOurs;
  else if (name === "src") keep(data, node.localName === "img" ? picture(value) : null);
  else if (name === "type") data.keepAttr = node.localName !== "input" || /^(checkbox|radio)$/i.test(value);
  else if (name === "href" || name === "xlink:href") {
    if (node.localName === "a") found.links.push([node, value]);
    keep(data, node.namespaceURI === SVG ? drawn(node, value) : null);
  } else if (node.namespaceURI !== HTML) data.keepAttr = isInert(value, name);
});
ofText.addHook("afterSanitizeAttributes", (node) => {
  if (node.localName === "input" && !node.hasAttribute("type")) node.remove();
  const number = marks.get(node);
  if (number !== undefined) node.setAttribute(`data-fume-${number}`, "");
});

ofSvg.addHook("uponSanitizeElement", (node, data) => {
  if (data.tagName === SHEET.svg) node.textContent = cleanSheet(node.textContent ?? "");
});
ofSvg.addHook("uponSanitizeAttribute", (node, data) => {
  const { attrName: name, attrValue: value } = data;
  if (name === "data-fume-style") keep(data, cleanDeclarations(value) || null);
  else if (name === "href" || name === "xlink:href") keep(data, drawn(node, value));
  else data.keepAttr = isInert(value, name);
});

let marks = new Map<Element, number>();

function mark(node: Element): number {
  const number = marks.size + 1;
  marks.set(node, number);
  return number;
}

function keep(data: { attrValue: string; keepAttr: boolean }, value: string | null): void {
  if (value === null) data.keepAttr = false;
  else data.attrValue = value;
}

/** What a part of a drawing may point at: another part, or an image that is in the address itself. */
function drawn(node: Element, value: string): string | null {
  return node.localName === "image" ? bitmap(value) : within(value);
}

function within(value: string): string | null {
  return /^#[\w.:-]+$/.test(value) ? value : null;
}

function bitmap(value: string): string | null {
  const [, kind, data] = BITMAP.exec(unquoted(value.trim())) ?? [];
  return kind && data ? `data:image/${kind.toLowerCase()};base64,${data.replace(/\s+/g, "")}` : null;
}

function picture(value: string): string | null {
  const [, form, data] = VECTORS.exec(value.trim()) ?? [];
  if (form === undefined || data === undefined) return bitmap(value);
  const clean = drawing(/;base64$/i.test(form) ? fromBase64(unquoted(data)) : unquoted(data));
  if (!clean || (found.repeated += clean.repeated) > LIMIT) return null; // of all in one text, no more than of one
  return `data:image/svg+xml,${encodeURIComponent(clean.text)}`;
}

function unquoted(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function fromBase64(text: string): string {
  try {
    return new TextDecoder().decode(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)));
  } catch {
    return "";
  }
}

function cleaned(source: string): Element {
  const body = ofText.sanitize(source, FOR_TEXT) as Element | null;
  return body ?? document.implementation.createHTMLDocument("").body; // a frameset leaves none
}

export interface Cleaned {
  body: Element; // in a document that has no window
  rules: string[]; // the styles that belong to it
  why: string | null; // it is shown as text, if it is
  isLacking: boolean; // what it shows elsewhere comes from a page in it
  isPlain: boolean; // its sheets are left out
}

/** The text itself, as what is shown of it. */
function asText(source: string, why: string): Cleaned {
  const { body } = document.implementation.createHTMLDocument("");
  const text = body.appendChild(body.ownerDocument.createElement("pre"));
  text.textContent = cut(source);
  return { body, rules: ["pre{white-space:pre-wrap}"], why, isLacking: false, isPlain: false };
}

/** The markup to show, or its source where it cannot be told what it would show. */
export function cleanHtml(source: string): Cleaned {
  try {
    const readable = renamed(source, SHEET.html);
    const why = tooMuch(readable);
    return why ? asText(source, why) : (settled(readable) ?? asText(source, "not the same when it is read again"));
  } catch {
    return asText(source, "more than can be read"); // a stack or a memory that is full
  }
}

function settled(readable: string): Cleaned | null {
  found = { sheets: [], rules: [], links: [], isOurs: false, repeated: 0 };
  marks = new Map();
  let body = cleaned(readable);
  const isLacking = ofText.removed.some((entry) => "element" in entry && entry.element.nodeName === "IFRAME");
  for (const [link, address] of found.links) {
    if (/^(https?|mailto):/i.test(address) && link.textContent?.trim() !== address) link.append(` (${address})`);
  }
  let { sheets, rules } = found;
  let isPlain = false;
  marks = new Map();
  for (let round = 0; round < ROUNDS; round++) {
    const before = body.innerHTML;
    found = { sheets: [], rules: [], links: [], isOurs: true, repeated: 0 };
    body = cleaned(before);
    if (body.innerHTML !== before) continue;
    narrow(body);
    isPlain ||= matching(body, sheets) > MATCHING;
    if (isPlain) sheets = [];
    if (repeated(body, [...sheets, ...rules]) <= LIMIT) return { body, rules: [...sheets, ...rules], why: null, isLacking, isPlain };
    unrepeated(body);
    [sheets, rules] = [sheets.map(pointless), rules.map(pointless)];
  }
  return null;
}

/** Cells of tables as wide and as high as they are said to be, or as one where that makes more of them than a browser can lay out. */
function narrow(body: Element): void {
  const height = body.getElementsByTagName("tr").length + body.getElementsByTagName("mtr").length;
  const size = (node: Element, name: string, most: number) => Math.min(most, Number.parseInt(node.getAttribute(name) ?? "") || 1);
  const wide = [...body.querySelectorAll(SPANS.map((name) => `[${name}]`).join())];
  const cells = wide.reduce((sum, node) => sum + size(node, "rowspan", height) * ["colspan", "columnspan", "span"].reduce((most, name) => Math.max(most, size(node, name, 1000)), 1), 0);
  if (cells > CELLS) for (const node of wide) for (const name of SPANS) node.removeAttribute(name);
}

/** The drawing with nothing in it that could run or fetch; null if it is none, or more than can be drawn. */
export function cleanSvg(source: string): string | null {
  return drawing(source)?.text ?? null;
}

function drawing(source: string): { text: string; repeated: number } | null {
  try {
    return cleanedSvg(source);
  } catch {
    return null; // a stack or a memory that is full; and what it finds tampered with is not cleaned
  }
}

function cleanedSvg(source: string): { text: string; repeated: number } | null {
  if (source.length > MOST_DRAWN) return null;
  const root = new DOMParser().parseFromString(renamed(source, SHEET.svg, true), "image/svg+xml").documentElement;
  if (root.namespaceURI !== SVG || root.nodeName !== "svg" || root.getElementsByTagName("parsererror").length) return null;
  if (isDeep(root)) return null;
  ofSvg.sanitize(root, FOR_SVG);
  const sheets = [...root.querySelectorAll(SHEET.svg)];
  if (matching(root, sheets.map((sheet) => sheet.textContent ?? "")) > MATCHING) for (const sheet of sheets) sheet.textContent = "";
  let size = repeated(root, sheets.map((sheet) => sheet.textContent ?? ""));
  if (size > LIMIT) {
    size = 0;
    unrepeated(root);
    for (const sheet of sheets) sheet.textContent = pointless(sheet.textContent ?? "");
  }
  const text = new XMLSerializer().serializeToString(root);
  return { text: text.replace(/<(\/?)glyph\b/g, "<$1style").replaceAll(" data-fume-style=", " style="), repeated: size };
}

function isDeep(root: Element): boolean {
  let depth = 0;
  const walker = root.ownerDocument.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
  for (;;) {
    if (walker.firstChild()) depth++;
    else {
      while (!walker.nextSibling()) {
        if (!walker.parentNode()) return false;
        depth--;
      }
    }
    if (depth > DEPTH) return true;
  }
}
