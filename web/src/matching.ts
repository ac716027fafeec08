/** What it costs a browser to find out which rules are for which elements: it compares each selector with all elements that
 * have the id, the class, an attribute or the name at its end, and may walk from each of them through others.
 */

export const MATCHING = 300_000_000; // characters of rules, each read once for an element

/** How many characters of these cleaned sheets are read, once for an element each; more than that where selectors are nested. */
export function matching(root: Element, sheets: string[]): number {
  const size = sizeOf(root);
  return sheets.reduce((sum, sheet) => sum + costOf(sheet, size), 0);
}

interface Size {
  elements: number;
  depth: number;
  siblings: number;
  named: Map<string, number>; // elements of each "#id", ".class", "[attribute" and name
}

function sizeOf(root: Element): Size {
  const size: Size = { elements: 0, depth: 1, siblings: 1, named: new Map() };
  const depths = new Map<Element, number>();
  for (const node of [root, ...root.querySelectorAll("*")]) {
    const depth = (depths.get(node.parentElement!) ?? 0) + 1;
    depths.set(node, depth);
    size.elements++;
    size.depth = Math.max(size.depth, depth);
    size.siblings = Math.max(size.siblings, node.childElementCount);
    const keys = [node.localName, `#${node.id}`, ...[...node.classList].map((name) => `.${name}`), ...node.getAttributeNames().map((name) => `[${name}`)];
    for (const key of keys.map((key) => key.toLowerCase())) size.named.set(key, (size.named.get(key) ?? 0) + 1);
  }
  return size;
}

/** A block of a sheet: for how many elements it is looked at, and what its selector costs for one. */
interface Block {
  elements: number;
  weight: number;
}

function costOf(sheet: string, size: Size): number {
  const open: Block[] = [];
  let cost = 0;
  for (const [, text, brace] of sheet.matchAll(/([^{}]*)([{}])/g)) {
    const outer = open.at(-1);
    cost += text!.length * (outer?.elements ?? 0);
    if (brace === "}") open.pop();
    else if (text!.includes("@")) open.push(outer ?? { elements: 0, weight: 0 });
    else {
      const list = text!.replace(/"[^"]*"/g, '""');
      const block = { elements: 0, weight: 0 };
      for (const selector of pieces(list)) {
        const weight = (selector.length + (outer?.weight ?? 0) * Math.max(1, selector.split("&").length - 1)) * reach(selector, size);
        const elements = candidates(selector, size);
        cost += weight * elements;
        block.weight += weight;
        block.elements += elements;
      }
      open.push(block);
    }
  }
  return cost;
}

/** The parts of this list that its commas part, without those in brackets. */
function pieces(list: string): string[] {
  const found: string[] = [];
  let depth = 0;
  let from = 0;
  for (const { 0: sign, index } of list.matchAll(/[()[\],]/g)) {
    if (sign === "(" || sign === "[") depth++;
    else if (sign !== ",") depth--;
    else if (depth === 0) {
      found.push(list.slice(from, index));
      from = index + 1;
    }
  }
  return [...found, list.slice(from)];
}

/** How many elements may have what is at the end of this selector. */
function candidates(selector: string, { elements, named }: Size): number {
  const end = outside(selector).trim().split(/[\s>+~]/).at(-1)!;
  for (const kind of [/#[^.#:[&|]+/g, /\.[^.#:[&|]+/g, /\[[^.#:[&|~^$*=\]]+/g, /^[^.#:[&|*]+/g]) {
    const keys = end.match(kind);
    if (keys) return Math.max(...keys.map((key) => named.get(key.toLowerCase()) ?? 0));
  }
  return elements;
}

/** This selector without what is in round brackets, and with no more than the names of attributes. */
function outside(selector: string): string {
  const kept: string[] = [];
  let depth = 0;
  let from = 0;
  for (const { 0: sign, index } of selector.matchAll(/[()[\]]/g)) {
    const isOpen = sign === "(" || sign === "[";
    if (isOpen && depth++ === 0) {
      kept.push(selector.slice(from, index));
      from = index;
    } else if (!isOpen && --depth === 0) {
      if (sign === "]") kept.push(/^\[[\w-]*/.exec(selector.slice(from, index))![0]);
      from = index + 1;
    }
  }
  return kept.join("") + selector.slice(from);
}

/** How many elements may be looked at for one: those around it, before it and in it, and that anew in each bracket. */
function reach(selector: string, size: Size): number {
  const text = selector.trim().replace(/ ([>+]) |(,) /g, "$1$2");
  let depth = 0;
  let nested = 0;
  for (const [sign] of text.matchAll(/[()]/g)) nested = Math.max(nested, (depth += sign === "(" ? 1 : -1));
  const around = (text.includes(" ") ? size.depth : 1) * (/~(?!=)/.test(text) ? size.siblings : 1);
  return around ** (1 + nested) * size.elements ** (text.split(":has(").length - 1);
}
