/** What a drawing repeats by pointing at parts of itself. A few such steps, one within the other, are more to paint than a
 * browser ever ends with, and it answers to nothing meanwhile.
 */

import { INHERITED, pointedAt, pointless } from "./css.js";

export const LIMIT = 100_000; // elements, as they are painted
const SHARE = 4; // and as many for each that is written: a scatter plot repeats its mark
const LOOKS = 10_000_000; // at an element, for a rule that points somewhere
const STEPS = 500; // of a filter; a browser takes each as often as a later one asks for what it gives
const ATTRIBUTES = ["fill", "stroke", "filter", "clip-path", "mask", "marker-start", "marker-mid", "marker-end"];
const POINTING = [...ATTRIBUTES, "data-fume-style"].map((name) => `[${name}*="url("]`).join();
const MAKING = new Set(["feFlood", "feTurbulence"]);
const TAKING_TWO = new Set(["feBlend", "feComposite", "feDisplacementMap"]);
const REPEATING = new Set(["use", "pattern", "textPath"]);

interface Pointed {
  parts: Element[]; // painted once
  filters: Filtering[]; // one on what the other gives
  brushes: Element[]; // painted for each thing in it
  isAtPoints: boolean; // and at each of its points
}

interface Filtering {
  steps: number;
  sources: number; // how often it asks for what is filtered
}

/** How many elements are painted for what is in `root`; without end where something is part of itself. */
function painted(root: Element, sheets: string[]): number {
  const all = [root, ...root.querySelectorAll("*")];
  const named = new Map<string, Element>();
  const marked = new Map<string, Element>();
  for (const node of all) {
    if (node.id && !named.has(node.id)) named.set(node.id, node);
    for (const name of node.getAttributeNames()) if (name.startsWith("data-fume-")) marked.set(`[${name}]`, node);
  }
  const filterings = new Map(all.filter(({ localName }) => localName === "filter").map((node) => [node, filtering(node)]));
  const pointed = new Map<Element, Pointed>();
  const point = (node: Element, property: string, ids: string[]) => {
    for (const id of ids) {
      const target = named.get(id);
      if (!target || /Gradient$/.test(target.localName)) continue;
      const known = pointed.get(node) ?? { parts: [], filters: [], brushes: [], isAtPoints: false };
      if (target.localName === "filter") known.filters.push(filterings.get(target)!);
      else (INHERITED.has(property) ? known.brushes : known.parts).push(target);
      known.isAtPoints ||= property === "marker" || property === "marker-mid";
      pointed.set(node, known);
    }
  };
  for (const node of all) {
    if (REPEATING.has(node.localName)) for (const name of ["href", "xlink:href"]) point(node, name, [(node.getAttribute(name) ?? "").slice(1)]);
  }
  for (const node of root.querySelectorAll(POINTING)) {
    for (const name of ATTRIBUTES) point(node, name, pointedAt(node.getAttribute(name) ?? ""));
    for (const [property, ids] of pointing(node.getAttribute("data-fume-style") ?? "")) point(node, property, ids);
  }
  let looks = 0;
  for (const [selector, declarations] of sheets.flatMap(rulesThatPoint)) {
    const one = marked.get(selector);
    const found = pointing(declarations);
    looks += (one ? 1 : all.length) * found.reduce((sum, [, ids]) => sum + ids.length, 0);
    if (looks > LOOKS) return Infinity;
    for (const node of one ? [one] : root.querySelectorAll(selector)) for (const [property, ids] of found) point(node, property, ids);
  }
  return summed(root, pointed);
}

/** The properties that point somewhere in these declarations, and where. */
function pointing(declarations: string): [property: string, ids: string[]][] {
  return declarations.split(";").flatMap((one): [string, string[]][] => {
    const colon = one.indexOf(":");
    const ids = pointedAt(one.slice(colon + 1));
    return colon < 0 || !ids.length ? [] : [[one.slice(0, colon).trim(), ids]];
  });
}

/** What a filter does for one thing, if each of its steps does anew what it takes. */
function filtering(filter: Element): Filtering {
  const source = { steps: 0, sources: 1 };
  const results = new Map<string, Filtering>();
  let last = source;
  for (const step of filter.children) {
    const all = taken(step).map((name) => results.get(name) ?? (/^(Source|Fill|Stroke|Background)/.test(name) ? source : last));
    last = {
      steps: all.reduce((sum, { steps }) => sum + steps, 1),
      sources: all.reduce((sum, { sources }) => sum + sources, 0),
    };
    const name = step.getAttribute("result");
    if (name) results.set(name, last);
  }
  return last.steps > STEPS ? { steps: Infinity, sources: 1 } : last;
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

/** The names of what a step of a filter takes; one that is not known is what the step before gives. */
function taken(step: Element): string[] {
  const nodes = step.localName === "feMerge" ? [...step.children] : MAKING.has(step.localName) ? [] : [step];
  const names = nodes.map((node) => node.getAttribute("in") ?? "");
  return TAKING_TWO.has(step.localName) ? [...names, step.getAttribute("in2") ?? ""] : names;
}

/** Adds up from the leaves; without recursion, for what points at the next may be as many as there are. */
function summed(root: Element, pointed: Map<Element, Pointed>): number {
  const sums = new Map<Element, number>();
  const points = pointsOf(root);
  const begun = new Set<Element>();
  const left = [root];
  while (left.length) {
    const node = left.at(-1)!;
    const { parts = [], filters = [], brushes = [], isAtPoints = false } = pointed.get(node) ?? {};
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
    const drawn = itself * (1 + (isAtPoints ? points.get(node)! : 1) * add(brushes)) + add(parts);
    sums.set(node, filters.reduce((sum, { steps, sources }) => sum * Math.max(1, sources) + steps, drawn));
  }
  return sums.get(root)!;
}

/** The most points that something in each element has. */
function pointsOf(root: Element): Map<Element, number> {
  const most = new Map<Element, number>();
  for (const node of [root, ...root.querySelectorAll("*")].reverse()) {
    const text = node.getAttribute("d") ?? node.getAttribute("points") ?? "";
    const points = Math.max(most.get(node) ?? 1, (text.match(/\d*\.?\d+/g)?.length ?? 0) / 2);
    most.set(node, points);
    const outer = node.parentElement;
    if (outer) most.set(outer, Math.max(most.get(outer) ?? 1, points));
  }
  return most;
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
