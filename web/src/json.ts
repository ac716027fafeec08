/** JSON as it is written, and no more of it than is shown: the indents may be many times what they indent. */

import { SHOWN, cut } from "./markup.js";

export function jsonOf(value: unknown, most = SHOWN, step = "  "): string {
  const pieces: string[] = [];
  let left = most;
  const put = (text: string) => {
    pieces.push(text);
    left -= text.length;
  };
  const write = (part: unknown, indent: string): void => {
    if (typeof part !== "object" || part === null) return put(JSON.stringify(typeof part === "string" ? part.slice(0, left + 1) : part));
    const isList = Array.isArray(part);
    const names = isList ? [] : Object.keys(part);
    const items = part as Record<string | number, unknown>;
    const length = isList ? part.length : names.length;
    const inner = indent + step;
    put(isList ? "[" : "{");
    for (let at = 0; at < length; at++) {
      if (left < 0) return;
      put((at ? "," : "") + (step && `\n${inner}`));
      if (!isList) put(`${JSON.stringify(names[at]!.slice(0, left + 1))}:${step && " "}`);
      write(items[isList ? at : names[at]!], inner);
    }
    put((step && length ? `\n${indent}` : "") + (isList ? "]" : "}"));
  };
  write(value, "");
  return cut(pieces.join(""), most);
}
