/** One run as the page knows it: what it has said so far and how it ended. */

import { Bundle, Event, FileEntry, Receipt, Result } from "./api.js";
import { Said, saidOf } from "./words.js";

export type Part =
  | { kind: "text"; stream: "stdout" | "stderr"; text: string }
  | { kind: "value"; bundle: Bundle };

const PIECE = 8_000; // characters in one text node, so that long output is not laid out anew with every line
const REDRAW_MS = 40;
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
    return this.parts.map((part) => (part.kind === "text" ? part.text : String(part.bundle["text/plain"] ?? ""))).join("");
  }

  take(event: Event): void {
    switch (event.type) {
      case "output":
        this.#write(event.stream, event.text ?? this.#decode(event.stream, event.base64 ?? ""));
        break;
      case "display":
        this.parts = [...this.parts, { kind: "value", bundle: event.data }];
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
        this.#timer = null;
        this.dispatchEvent(new CustomEvent("change"));
      }, REDRAW_MS);
    }
  }

  #decode(stream: "stdout" | "stderr", base64: string): string {
    return this.#decoders[stream].decode(fromBase64(base64), { stream: true });
  }

  #write(stream: "stdout" | "stderr", raw: string): void {
    let text = raw.replace(ESCAPES, "").replace(/\r+\n/g, "\n");
    if (!text) return;
    const parts = this.parts.slice();
    let last = parts.at(-1);
    const returns = text.lastIndexOf("\r");
    // A carriage return starts the line anew, as progress bars want it.
    if (returns >= 0) {
      text = text.replace(/[^\n]*\r(?=[^\n])/g, "\r").replace(/\r$/, "");
      if (text.startsWith("\r") && last?.kind === "text" && last.stream === stream) {
        last = { ...last, text: last.text.slice(0, last.text.lastIndexOf("\n") + 1) };
        parts[parts.length - 1] = last;
      }
      text = text.replace(/\r/g, "");
    }
    if (last?.kind === "text" && last.stream === stream && last.text.length < PIECE) {
      parts[parts.length - 1] = { ...last, text: last.text + text };
    } else {
      parts.push({ kind: "text", stream, text });
    }
    this.parts = parts;
  }
}

export function fromBase64(base64: string): Uint8Array<ArrayBuffer> {
  const binary = atob(base64.replace(/\s+/g, ""));
  const data = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) data[at] = binary.charCodeAt(at);
  return data;
}
