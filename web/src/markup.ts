/** Markup as text, before a browser reads it: where its tags are, and whether reading it would take without end.
 *
 * One pass, whatever is in it: what is not closed ends the pass, and is never looked for twice.
 */

export interface Tag {
  name: string; // in lower case
  start: number; // of the name
  end: number; // after the ">", or after the text that is not markup
  isEnd: boolean;
  isClosed: boolean; // with a "/" at its end
  attributes: [start: number, end: number][]; // their names
  isUnsure: boolean; // in a drawing it is read in another way
  isCommented: boolean; // where it ends depends on comments in it
}

const words = (text: string) => new Set(text.trim().split(/\s+/));
const RAW = words("iframe noembed noframes plaintext script style textarea title xmp");
const NAME = /[a-z][^\t\n\f\r />]*/iy;
const GAP = /[\t\n\f\r /]*/y;
const ATTRIBUTE = /[^\t\n\f\r />][^\t\n\f\r />=]*/y;
const EQUALS = /[\t\n\f\r ]*=[\t\n\f\r ]*/y;
const UNQUOTED = /[^\t\n\f\r >]*/y;

const ATTRIBUTES = 1000;

/** Where this pattern ends if it is found here; `at` if not. */
function after(pattern: RegExp, source: string, at: number): number {
  pattern.lastIndex = at;
  return pattern.test(source) ? pattern.lastIndex : at;
}

function past(mark: string, source: string, at: number): number {
  const found = source.indexOf(mark, at);
  return found < 0 ? source.length : found + mark.length;
}

function pastComment(source: string, at: number, isXml: boolean): number {
  if (isXml) return past("-->", source, at);
  if (source[at] === ">") return at + 1;
  if (source.startsWith("->", at)) return at + 2;
  const end = /--!?>/g;
  end.lastIndex = at;
  return end.test(source) ? end.lastIndex : source.length;
}

/** The tags of this text, without those in comments and in elements whose content is text; with those in such elements of
 * a drawing, where that is asked for, for there their content is markup. */
export function* tags(source: string, isXml: boolean, drawing?: Drawing): Generator<Tag> {
  for (let at = source.indexOf("<"); at >= 0; at = source.indexOf("<", at)) {
    if (source.startsWith("<!--", at)) at = pastComment(source, at + 4, isXml);
    else if (source.startsWith("<![CDATA[", at) && isXml) at = past("]]>", source, at);
    else if (source.startsWith("<?", at) && isXml) at = past("?>", source, at);
    else if (source.startsWith("<![CDATA[", at)) {
      const end = past(">", source, at);
      yield { name: "![cdata[", start: at, end, isEnd: false, isClosed: true, attributes: [], isUnsure: true, isCommented: false };
      at = end;
    } else if (/[!?]/.test(source[at + 1] ?? "")) at = past(">", source, at);
    else {
      const isEnd = source[at + 1] === "/";
      const start = at + (isEnd ? 2 : 1);
      const named = after(NAME, source, start);
      if (named === start) {
        at = isEnd && start < source.length ? past(">", source, start) : start;
        continue;
      }
      const tag: Tag = { name: source.slice(start, named).toLowerCase(), start, end: named, isEnd, isClosed: false, attributes: [], isUnsure: false, isCommented: false };
      at = readAttributes(tag, source);
      if (at < 0) return; // it never ends, and a browser leaves it out
      drawing?.take(tag);
      if (!isEnd && !isXml && RAW.has(tag.name) && !drawing?.isOpen) readText(tag, source);
      yield tag;
      at = tag.end;
    }
  }
}

function readAttributes(tag: Tag, source: string): number {
  for (let at = tag.end; ; ) {
    const start = after(GAP, source, at);
    if (start >= source.length) return -1;
    if (source[start] === ">") {
      tag.isClosed = start > at && source[start - 1] === "/";
      return (tag.end = start + 1);
    }
    const end = after(ATTRIBUTE, source, start);
    tag.attributes.push([start, end]);
    if (tag.attributes.length > ATTRIBUTES) throw new RangeError("too many attributes"); // each is compared with all before it
    at = after(EQUALS, source, end);
    if (at === end) continue;
    const quote = source[at];
    if (quote === '"' || quote === "'") {
      const close = source.indexOf(quote, at + 1);
      if (close < 0) return -1;
      at = close + 1;
    } else at = after(UNQUOTED, source, at);
  }
}

function readText(tag: Tag, source: string): void {
  const end = new RegExp(`</${tag.name}(?=[\\t\\n\\f\\r />])`, "gi");
  end.lastIndex = tag.end;
  const close = tag.name === "plaintext" ? null : end.exec(source);
  const pieces = source.slice(tag.end, close?.index ?? source.length).split("<").slice(1);
  tag.isUnsure = !close || pieces.some((piece) => !piece.startsWith("![CDATA[") || !piece.includes("]]>"));
  tag.isCommented = pieces.some((piece) => piece.startsWith("!--"));
  tag.end = close?.index ?? source.length;
}

export const MOST = 4_000_000; // characters; a styled table of 10,000 cells has less than a half of that
const ELEMENTS = 200_000;
export const DEPTH = 512; // as deep as a browser nests; what is deeper it may read as something else the next time
const FORMATTING = words("a b big code em font i nobr s small strike strong tt u");
const EMPTY = words("area base basefont bgsound body br col embed frame head hr html img input keygen link meta param source track wbr");
const EMPTY_ANYWHERE = words("body br embed head hr img meta");
// Which end where the next of them begins; two that are nested have something else between them.
const LOOSE = words("li p tbody td tfoot th thead tr");
const LOOSE_ANYWHERE = words("li p");
// In these, the same text is other markup.
const DRAWING = words("svg math");
const SPECIAL = words("svg math select frameset template");
// What ends a drawing, and what has HTML in it.
const NOT_DRAWN = words(`b big blockquote body br center code dd div dl dt em embed font h1 h2 h3 h4 h5 h6 head hr i img li listing
  menu meta nobr ol p pre ruby s small span strong strike sub sup table tt u ul var`);
const NOT_DRAWING = words("annotation-xml desc foreignobject mi mn mo ms mtext");

/** Why this HTML is not given to a browser to read, if so: it takes a time that grows with the square of the depth, and a
 * repeated format multiplies elements.
 *
 * Never less is counted than a browser nests: an end tag counts only where it ends the innermost element; where it is not
 * sure what is markup, none counts.
 */
export function tooMuch(source: string): string | null {
  if (source.length > MOST) return "too large";
  const open: string[] = [];
  let elements = 0;
  let formats = 0;
  let drawing = -1; // where the drawing begins in `open`, while all of it is drawn
  let paused = -1; // the same, while there is but text in an element of it that may have HTML
  let isSpecial = false;
  let isOdd = false;
  for (const tag of tags(source, false)) {
    const { name } = tag;
    if ((tag.isUnsure && isSpecial) || (tag.isCommented && name === "script")) {
      const rest = source.slice(tag.start).match(/<[a-z]/gi)?.length ?? 0;
      return open.length + rest > DEPTH ? "too deeply nested" : null;
    }
    if (NOT_DRAWN.has(name)) drawing = -1;
    if (tag.isEnd) {
      if ((name === "p" || name === "br") && (elements += 1 + formats) > ELEMENTS) return "too large"; // it makes one where none is open
      if (open.at(-1) !== name) {
        if (!RAW.has(name)) drawing = paused = -1;
        continue;
      }
      open.pop();
      if (paused >= 0) drawing = paused;
      paused = -1;
      if (FORMATTING.has(name)) formats--;
      if (open.length <= drawing) drawing = -1;
      continue;
    }
    paused = -1;
    if (NOT_DRAWING.has(name)) [drawing, paused] = [-1, drawing];
    elements += 1 + formats;
    if (elements > ELEMENTS) return "too large";
    isSpecial ||= SPECIAL.has(name);
    isOdd ||= SPECIAL.has(name) && !DRAWING.has(name);
    if (RAW.has(name) || name === "![cdata[") continue;
    if ((isSpecial ? EMPTY_ANYWHERE : EMPTY).has(name) || (isSpecial ? LOOSE_ANYWHERE : LOOSE).has(name)) continue;
    if (DRAWING.has(name) && drawing < 0 && !isOdd && !tag.isClosed) drawing = open.length;
    else if (tag.isClosed && drawing >= 0) continue;
    open.push(name);
    if (FORMATTING.has(name)) formats++;
    if (open.length > DEPTH) return "too deeply nested";
  }
  return null;
}

/** Whether a tag is in a drawing, as far as can be told without reading it as a browser does. */
class Drawing {
  #open: string[] = []; // from the first drawing on; in an element of it that has HTML, no more than the next drawing
  isOpen = false; // what this tag begins or is in is drawn

  take({ name, isEnd, isClosed }: Tag): void {
    this.isOpen = this.#isDrawn();
    if (isEnd) {
      const at = this.#open.lastIndexOf(name);
      if (at >= 0) this.#open.length = at;
      return;
    }
    if (this.isOpen && NOT_DRAWN.has(name)) {
      while (this.#isDrawn()) this.#open.pop();
      this.isOpen = false;
    } else if ((this.isOpen ||= DRAWING.has(name)) && !isClosed && this.#open.length < DEPTH) this.#open.push(name);
  }

  #isDrawn(): boolean {
    const last = this.#open.at(-1);
    return last !== undefined && last !== "title" && !NOT_DRAWING.has(last);
  }
}

/** The text with other names for what a browser reports to the console where it may not use it: styles and handlers. */
export function renamed(source: string, sheet: string, isXml = false): string {
  const pieces: string[] = [];
  let done = 0;
  const replace = (start: number, end: number, text: string) => {
    pieces.push(source.slice(done, start), text);
    done = end;
  };
  for (const { name, start, attributes, isEnd } of tags(source, isXml, isXml ? undefined : new Drawing())) {
    if (name === "style") replace(start, start + name.length, sheet);
    else if (name === "base" || name === "track") replace(start, start, "fume-");
    if (isEnd) continue;
    for (const [from, to] of attributes) if (/^(?:style|media|sizes|on\w+)$/i.test(source.slice(from, to))) replace(from, from, "data-fume-");
  }
  return pieces.join("") + source.slice(done);
}

export const SHOWN = 100_000; // characters of a text in place of what it stands for

export function cut(source: string, most = SHOWN): string {
  return source.length > most ? `${source.slice(0, most)}…` : source;
}
