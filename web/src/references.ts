/** What a drawing repeats by pointing at parts of itself. A few such steps, one within the other, are more to paint than a
 * browser ever ends with, and it answers to nothing meanwhile.
 */

import { INHERITED, pointedAt, pointless } from "./css.js";

export const LIMIT = 100_000; // elements, as they are painted
const SHARE = 4; // and as many for each that is written: a scatter plot repeats its mark
const RULES = 200; // that point somewhere; to find what each is for takes a look at everything
const ATTRIBUTES = ["fill", "stroke", "filter", "clip-path", "mask", "marker-start", "marker-mid", "marker-end"];
const POINTING = [...ATTRIBUTES, "data-fume-style"].map((name) => `[${name}*="url("]`).join();
const REPEATING = new Set(["use", "pattern", "textPath"]);

interface Pointed {
  parts: Element[]; // painted once
  brushes: Element[]; // painted for each thing in it
  isAtPoints: boolean; // and at each of its points
}

/** How many elements are painted for what is in `root`; without end where something is part of itself. */
function painted(root: Element, sheets: string[]): number {
  const all = [root, ...root.querySelectorAll("*")];
  const named = new Map<string, Element>();
  const marked = new Map<string, Element>();
  for (const node of all) {
    if (node.id && !named.has(node.id)) named.set(node.id, node);
    const mark = node.getAttribute("data-fume");
    if (mark) marked.set(`[data-fume="${mark}"]`, node);
  }
  const pointed = new Map<Element, Pointed>();
  const point = (node: Element, property: string, ids: string[]) => {
    for (const id of ids) {
      const target = named.get(id);
      if (!target || /Gradient$/.test(target.localName)) continue;
      const known = pointed.get(node) ?? { parts: [], brushes: [], isAtPoints: false };
      (INHERITED.has(property) ? known.brushes : known.parts).push(target);
      known.isAtPoints ||= property === "marker" || property === "marker-mid";
      pointed.set(node, known);
    }
  };
  const pointBy = (node: Element, declarations: string) => {
    for (const [, property, value] of declarations.matchAll(/([\w-]+)\s*:([^;]*)/g)) point(node, property!, pointedAt(value!));
  };
  for (const node of all) {
    if (REPEATING.has(node.localName)) for (const name of ["href", "xlink:href"]) point(node, name, [(node.getAttribute(name) ?? "").slice(1)]);
  }
  for (const node of root.querySelectorAll(POINTING)) {
    for (const name of ATTRIBUTES) point(node, name, pointedAt(node.getAttribute(name) ?? ""));
    pointBy(node, node.getAttribute("data-fume-style") ?? "");
  }
  let looks = 0;
  for (const [selector, declarations] of sheets.flatMap(rulesThatPoint)) {
    const one = marked.get(selector);
    if (!one && ++looks > RULES) return Infinity;
    for (const node of one ? [one] : root.querySelectorAll(selector)) pointBy(node, declarations);
  }
  return summed(root, pointed);
}

/** The rules of a cleaned sheet that point somewhere. Of one within another it is not tried to say what it is for. */
function rulesThatPoint(sheet: string): [selector: string, declarations: string][] {
  const found: [string, string][] = [];
  let outer = "*";
  let depth = 0;
  for (const [, text, brace] of sheet.matchAll(/([^{}]*)([{}])/g)) {
    if (depth > 0 && pointedAt(text!).length) found.push([depth === 1 ? outer : "*", text!]);
    if (depth === 0) outer = /^\s*@|:/.test(text!) ? "*" : text!.trim();
    depth += brace === "{" ? 1 : -1;
  }
  return found;
}

/** Adds up from the leaves; without recursion, for what points at the next may be as many as there are. */
function summed(root: Element, pointed: Map<Element, Pointed>): number {
  const sums = new Map<Element, number>();
  const begun = new Set<Element>();
  const left = [root];
  while (left.length) {
    const node = left.at(-1)!;
    const { parts = [], brushes = [], isAtPoints = false } = pointed.get(node) ?? {};
    if (!begun.has(node)) {
      begun.add(node);
      for (const next of [...node.children, ...parts, ...brushes]) {
        if (begun.has(next) && !sums.has(next)) return Infinity; // it is part of itself
        if (!begun.has(next)) left.push(next);
      }
      continue;
    }
    left.pop();
    if (sums.has(node)) continue;
    const add = (nodes: Iterable<Element>) => [...nodes].reduce((sum, next) => sum + sums.get(next)!, 0);
    const itself = 1 + add(node.children);
    const points = isAtPoints ? pointsOf(node) : 1;
    sums.set(node, itself * (1 + points * add(brushes)) + add(parts));
  }
  return sums.get(root)!;
}

function pointsOf(node: Element): number {
  const paths = [node, ...node.querySelectorAll("[d], [points]")];
  const texts = paths.map((path) => path.getAttribute("d") ?? path.getAttribute("points") ?? "");
  return Math.max(1, ...texts.map((text) => (text.match(/\d*\.?\d+/g)?.length ?? 0) / 2));
}

/** How many elements more are painted than the length of what is written accounts for. */
export function repeated(root: Element, sheets: string[]): number {
  return Math.max(0, painted(root, sheets) - SHARE * root.querySelectorAll("*").length);
}

/** Takes away whatever repeats something else. */
export function unrepeated(root: Element): void {
  for (const node of root.querySelectorAll("use, textPath")) node.remove();
  for (const node of root.querySelectorAll("pattern")) for (const name of ["href", "xlink:href"]) node.removeAttribute(name);
  for (const node of [root, ...root.querySelectorAll(POINTING)])
    for (const name of ATTRIBUTES) if (node.getAttribute(name)?.includes("url(")) node.removeAttribute(name);
  for (const node of root.querySelectorAll("[data-fume-style]")) node.setAttribute("data-fume-style", pointless(node.getAttribute("data-fume-style")!));
}
