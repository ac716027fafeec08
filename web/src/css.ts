/** Style sheets that a program made, less all that could fetch.
 *
 * The browser reads them, into a sheet that no document has; what is kept is written anew from what it understood. So an
 * escape, a comment or a string that is left open hides nothing. Functions are kept by name, and `url()` is not among them:
 * it may only point into the same picture, and only where that is looked for there. Elsewhere a browser loads the page anew
 * to find it.
 */

const words = (text: string) => new Set(text.trim().split(/\s+/));

const FUNCTIONS = words(
  `blur brightness calc circle clamp color color-mix conic-gradient contrast counter counters cubic-bezier drop-shadow ellipse
  fit-content grayscale hsl hsla hue-rotate hwb inset invert lab lch light-dark linear linear-gradient matrix matrix3d max min
  minmax oklab oklch opacity path perspective polygon radial-gradient repeat repeating-conic-gradient repeating-linear-gradient
  repeating-radial-gradient rgb rgba rotate rotate3d rotatex rotatey rotatez saturate scale scale3d scalex scaley scalez sepia
  skew skewx skewy steps translate translate3d translatex translatey translatez var
  is not where has nth-child nth-last-child nth-of-type nth-last-of-type lang dir host and or only`,
);
export const INHERITED = words("fill stroke marker marker-start marker-mid marker-end");
const REFERRING = new Set([...INHERITED, ...words("filter clip-path mask mask-image -webkit-mask -webkit-mask-image")]);
const FILTERS = ["filter", "backdrop-filter"];
const EFFECTS = 5; // of one filter; a shadow paints all before it twice
const EFFECT = /\b(?:blur|brightness|contrast|drop-shadow|grayscale|hue-rotate|invert|opacity|saturate|sepia|url)\(/gi;
const WITHIN = /\burl\((["']?)#([\w.:-]+)\1\)/g;
const UNSURE = /[\\@{}<]|\/\*/;

const DEPTH = 64; // a browser's own reading ends with the tab where there are some thousands
// Brackets, and what may hold some that are none. An address without quotes must have none and be the same if it were no address.
const PIECES = new RegExp(
  [
    /\/\*[^]*?(?:\*\/|$)/,
    /"(?:[^"\\\n\r\f]|\\(?:\r\n|[^]))*"?/,
    /'(?:[^'\\\n\r\f]|\\(?:\r\n|[^]))*'?/,
    /\\(?:[0-9a-f]{1,6}\s?|[^])[\w\u0080-\uffff-]*/,
    /url\([^"'()[\]{}\\*]*\)/,
    /url\((?!\s*["'])/,
    /[()[\]{}]/,
  ]
    .map(({ source }) => source)
    .join("|"),
  "gi",
);
const SINGLY = 1000; // declarations that are looked at one by one; the browser looks for each among all
const CLOSES: Record<string, string> = { "(": ")", "[": "]", "{": "}" };

/** Whether the brackets of this text are nested no deeper than a style sheet needs. */
function isFlat(source: string): boolean {
  if (source.length <= DEPTH) return true;
  const open: string[] = [];
  let escaped = -1; // where a name ends that has an escape: before a bracket, it may be any function
  for (const { 0: piece, index } of source.matchAll(PIECES)) {
    if (piece.startsWith("\\")) escaped = index + piece.length;
    else if (/^url\($/i.test(piece) || (piece === "(" && index === escaped)) return false;
    else if (CLOSES[piece]) open.push(CLOSES[piece]);
    else if (piece === open.at(-1)) open.pop();
    if (open.length > DEPTH) return false;
  }
  return true;
}

/** Whether this text, of a declaration, a selector, a condition or an attribute, names nothing to fetch. */
export function isInert(text: string, property = ""): boolean {
  if (UNSURE.test(text) || !isFlat(text)) return false;
  if (FILTERS.includes(property) && (/\bvar\(/i.test(text) || (text.match(EFFECT)?.length ?? 0) > EFFECTS)) return false;
  const rest = REFERRING.has(property) ? text.replace(WITHIN, "") : text;
  for (const [, name, called] of rest.matchAll(/([\w\-\u0080-\uffff]+)(\(?)/g)) {
    if (called && !FUNCTIONS.has(name!.toLowerCase())) return false;
  }
  return true;
}

export function cleanDeclarations(source: string): string {
  if (!isFlat(source)) return "";
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`a{${source}}`);
  const first = sheet.cssRules[0];
  return first instanceof CSSStyleRule ? declarations(first.style) : "";
}

export function cleanSheet(source: string): string {
  if (!isFlat(source)) return "";
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(source);
  return rules(sheet.cssRules);
}

function rules(list: CSSRuleList): string {
  return [...list].map(rule).join("\n");
}

function rule(made: CSSRule): string {
  if (made instanceof CSSStyleRule) return block(made.selectorText, declarations(made.style) + rules(made.cssRules));
  if (made instanceof CSSMediaRule) return block(made.conditionText, rules(made.cssRules), "@media ");
  if (made instanceof CSSSupportsRule) return block(made.conditionText, rules(made.cssRules), "@supports ");
  if (made instanceof CSSKeyframesRule) return /^[\w-]+$/.test(made.name) ? block(made.name, rules(made.cssRules), "@keyframes ") : "";
  if (made instanceof CSSKeyframeRule) return block(made.keyText, declarations(made.style));
  return ""; // @import, @font-face, @namespace, @property and what is yet to come
}

function block(head: string, body: string, kind = ""): string {
  return body && isInert(head) ? `${kind}${head}{${body}}` : "";
}

function declarations(style: CSSStyleDeclaration): string {
  for (const name of FILTERS) if (!isInert(style.getPropertyValue(name), name)) style.removeProperty(name);
  if (isInert(style.cssText)) return style.cssText; // with its shorthands, and nothing that points elsewhere
  if (style.length > SINGLY) return "";
  return [...style]
    .map((name) => ({ name, value: style.getPropertyValue(name), rank: style.getPropertyPriority(name) }))
    .filter(({ name, value }) => value && /^[\w-]+$/.test(name) && isInert(value, name))
    .map(({ name, value, rank }) => `${name}:${value}${rank && ` !${rank}`};`)
    .join("");
}

/** The ids that a text which was cleaned points at. */
export function pointedAt(text: string): string[] {
  return [...text.matchAll(WITHIN)].map(([, , id]) => id!);
}

/** What was cleaned, pointing nowhere. */
export function pointless(text: string): string {
  return text.replace(WITHIN, "none");
}
