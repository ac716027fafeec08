/** One run as the page knows it: what it has said so far and how it ended. */

import { Bundle, Event, FileEntry, Receipt, Result } from "./api.js";
import { Said, saidOf } from "./words.js";

export type Part =
  | { kind: "text"; stream: "stdout" | "stderr"; text: string; weight: number }
  | { kind: "value"; bundle: Bundle }
  | { kind: "gap"; characters: number; values: number };

const PIECE = 8_000; // characters in one text node, so that long output is not laid out anew with every line
const PIECES = new RegExp(`.{1,${PIECE}}`, "gsu");
const REDRAW_MS = 40;
// What is shown of a run: its beginning and its end. A page that lays out all that an endless loop prints cannot be stopped.
const HEAD = { parts: 100, weight: 50_000 };
const TAIL = { parts: 900, weight: 150_000 };
const LINE = 30; // characters that a line weighs, however short
// Colours and cursor movements that programs write for a terminal.
const ESCAPES = /\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;

let count = 0;

export class Run extends EventTarget {
  readonly key = ++count;
  readonly started = Date.now();
  readonly abort = new AbortController();
  parts: Part[] = [];
  files: FileEntry[] = [];
  result: Result | null = null;
  problem: Said | null = null;
  stopping = false;
  sessionId: string | null = null;
  #timer: number | null = null;
  #pause = REDRAW_MS; // longer where drawing is slow, for keys and clicks come between
  #head = 0; // parts before the gap, once there is one
  #isReturned = { stdout: false, stderr: false }; // to the beginning of its last line
  #decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };

  constructor(readonly code: string) {
    super();
  }

  get running(): boolean {
    return this.result === null && this.problem === null;
  }

  get receipt(): Receipt | null {
    return (this.result?.meta.isolation as Receipt | undefined) ?? null;
  }

  get text(): string {
    return this.parts.map(textOf).join("");
  }

  take(event: Event): void {
    switch (event.type) {
      case "output":
        this.#write(event.stream, event.text ?? this.#decode(event.stream, event.base64 ?? ""));
        break;
      case "display":
        this.parts = this.#bounded([...this.parts, { kind: "value", bundle: event.data }]);
        break;
      case "file":
        this.files = [...this.files.filter((file) => file.path !== event.path), event];
        break;
      case "result":
        this.result = event;
        if (event.files?.length) this.files = event.files;
        break;
      case "error":
        this.problem = saidOf(event.error);
        break;
    }
    this.changed();
  }

  fail(problem: Said): void {
    if (this.running) this.problem = problem;
    this.changed();
  }

  changed(): void {
    if (!this.running) {
      if (this.#timer !== null) clearTimeout(this.#timer);
      this.#timer = null;
      this.dispatchEvent(new CustomEvent("change"));
    } else {
      this.#timer ??= window.setTimeout(() => {
        const began = performance.now();
        this.#timer = null;
        this.dispatchEvent(new CustomEvent("change"));
        setTimeout(() => (this.#pause = Math.min(2000, Math.max(REDRAW_MS, 3 * (performance.now() - began)))));
      }, this.#pause);
    }
  }

  #decode(stream: "stdout" | "stderr", base64: string): string {
    return this.#decoders[stream].decode(fromBase64(base64), { stream: true });
  }

  #write(stream: "stdout" | "stderr", raw: string): void {
    let text = raw.replace(ESCAPES, "");
    if (!text) return;
    if (this.#isReturned[stream]) text = `\r${text}`;
    this.#isReturned[stream] = text.endsWith("\r");
    const parts = this.parts.slice();
    let last = parts.at(-1);
    // A carriage return starts the line anew, as progress bars want it.
    if (text.includes("\r")) {
      const lines = text.split("\n").map(withoutReturns);
      text = lines.map((line) => line.slice(line.lastIndexOf("\r") + 1)).join("\n");
      if (lines[0]!.includes("\r") && last?.kind === "text" && last.stream === stream) {
        const before = last.text.slice(0, last.text.lastIndexOf("\n") + 1);
        last = { ...last, text: before, weight: weigh(before) };
        parts[parts.length - 1] = last;
      }
    }
    if (last?.kind === "text" && last.stream === stream && last.text.length < PIECE && text.length < PIECE) {
      parts[parts.length - 1] = { ...last, text: last.text + text, weight: last.weight + weigh(text) };
    } else {
      for (const piece of text.match(PIECES) ?? []) parts.push({ kind: "text", stream, text: piece, weight: weigh(piece) });
    }
    this.parts = this.#bounded(parts);
  }

  /** Without the oldest of what comes after the head, where there is too much; values outlast text. */
  #bounded(parts: Part[]): Part[] {
    let gap = parts[this.#head];
    const begin = gap?.kind === "gap" ? this.#head + 1 : headOf(parts);
    let weight = 0;
    for (let at = begin; at < parts.length; at++) weight += weightOf(parts[at]!);
    let surplus = parts.length - begin - TAIL.parts;
    if (surplus <= 0 && weight <= TAIL.weight) return parts;
    gap = gap?.kind === "gap" ? { ...gap } : { kind: "gap", characters: 0, values: 0 };
    this.#head = gap.characters || gap.values ? this.#head : begin;
    const kept: Part[] = [];
    for (const [at, part] of parts.slice(begin).entries()) {
      const last = at === parts.length - begin - 1;
      if (!last && (surplus > 0 || (part.kind === "text" && weight > TAIL.weight))) {
        surplus--;
        weight -= weightOf(part);
        if (part.kind === "text") gap.characters += part.text.length;
        else gap.values++;
      } else kept.push(part);
    }
    return [...parts.slice(0, this.#head), gap, ...kept];
  }
}

/** A line without the carriage returns at its end. A pattern would take a time that grows with the square of their number. */
function withoutReturns(line: string): string {
  let end = line.length;
  while (line[end - 1] === "\r") end--;
  return line.slice(0, end);
}

function weigh(text: string): number {
  return text.length + LINE * (text.split("\n").length - 1);
}

function weightOf(part: Part): number {
  return part.kind === "text" ? part.weight : 0;
}

function headOf(parts: Part[]): number {
  let weight = 0;
  const end = parts.findIndex((part, at) => (weight += weightOf(part)) > HEAD.weight ? at > 0 : at >= HEAD.parts);
  return end < 0 ? parts.length : end;
}

function textOf(part: Part): string {
  if (part.kind === "text") return part.text;
  return part.kind === "value" ? plainOf(part.bundle) : `\n… ${leftOut(part)}\n`;
}

/** A value as text; the program may have put anything there. */
export function plainOf(bundle: Bundle): string {
  const plain = bundle["text/plain"] ?? "";
  return typeof plain === "string" ? plain : JSON.stringify(plain);
}

export function leftOut({ characters, values }: { characters: number; values: number }): string {
  const what = [characters ? `${characters.toLocaleString("en")} characters` : "", values ? `${values.toLocaleString("en")} values` : ""];
  return `${what.filter(Boolean).join(" and ")} are not shown`;
}

export function fromBase64(base64: string): Uint8Array<ArrayBuffer> {
  const binary = atob(base64.replace(/\s+/g, ""));
  const data = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) data[at] = binary.charCodeAt(at);
  return data;
}
