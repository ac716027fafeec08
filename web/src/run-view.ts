/** One run, shown: how it stands, what it said and made, and its receipt. */

import { LitElement, TemplateResult, css, html, nothing } from "lit";
import { repeat } from "lit/directives/repeat.js";
import { FileEntry, LeftOut, Receipt } from "./api.js";
import { Icon, icon } from "./icons.js";
import { picture, pictureStyle } from "./receipt.js";
import { Part, Run, leftOut } from "./run.js";
import { base } from "./styles.js";
import "./value.js";
import { bytes, look, outcome, plural, seconds, visible } from "./words.js";

const PICTURES = /\.(png|jpe?g|gif|webp|svg)$/i;
const MIMES: Record<string, string> = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", svg: "image/svg+xml" };

export class FumeRun extends LitElement {
  static override properties = { run: { attribute: false }, open: { type: Boolean }, now: { state: true } };
  declare run: Run;
  declare open: boolean;
  declare now: number;
  #watched: Run | null = null;
  #clock: number | null = null;
  #pictures = new Map<FileEntry, Record<string, string>>();
  #changed = () => this.requestUpdate();
  static override styles = [
    base,
    pictureStyle,
    css`
      article { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; }
      .bar { display: flex; align-items: center; gap: 0.35rem 0.7rem; padding: 0.35rem 0.5rem 0.35rem 0.4rem; min-width: 0; flex-wrap: wrap; }
      .toggle { flex: 1 1 11rem; min-width: 0; justify-content: start; text-align: left; padding: 0.2rem 0.5rem; gap: 0.6rem; }
      .toggle .first { flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis; color: var(--muted); }
      .outcome { display: inline-flex; align-items: center; gap: 0.4rem; font-weight: 600; }
      .outcome.good { color: var(--good); }
      .outcome.bad { color: var(--bad); }
      .outcome.halted { color: var(--warn); }
      .spinner { width: 0.9em; height: 0.9em; border-radius: 50%; border: 2px solid var(--line); border-top-color: var(--accent); animation: turn 0.9s linear infinite; }
      @keyframes turn { to { transform: rotate(1turn); } }
      .time { font-variant-numeric: tabular-nums; color: var(--muted); font-size: 0.867rem; padding-right: 0.4rem; }
      .receipt { font-size: 0.867rem; color: var(--muted); }
      .body { border-top: 1px solid var(--line); padding: 0.8rem 0.9rem 0.9rem; display: grid; grid-template-columns: minmax(0, 1fr); gap: 0.7rem; }
      pre { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.55; tab-size: 8; }
      pre.stderr { border-left: 3px solid var(--bad); padding: 0.15rem 0 0.15rem 0.7rem; color: var(--bad); }
      .label { display: block; font: 600 0.75rem var(--sans); color: var(--bad); }
      .output { display: grid; grid-template-columns: minmax(0, 1fr); gap: 0.7rem; }
      .output pre { max-height: max(16rem, 62vh); overflow: auto; }
      .files { display: flex; flex-wrap: wrap; gap: 0.5rem; }
      .files button { max-width: 100%; }
      .files span.name { overflow: hidden; text-overflow: ellipsis; }
      .foot { display: flex; flex-wrap: wrap; gap: 0.2rem 0.9rem; align-items: center; }
      @media (max-width: 499px) { .receipt .word { display: none; } }
      h3 { font-size: 0.8rem; font-weight: 600; color: var(--muted); margin-bottom: 0.35rem; }
    `,
  ];

  override connectedCallback(): void {
    super.connectedCallback();
    this.#watch();
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    this.#watched?.removeEventListener("change", this.#changed);
    this.#watched = null;
    this.#tick(false);
  }

  override willUpdate(): void {
    this.#watch();
    this.#tick(this.run.running);
  }

  #watch(): void {
    if (!this.run || this.#watched === this.run) return;
    this.#watched?.removeEventListener("change", this.#changed);
    this.#watched = this.run;
    this.run.addEventListener("change", this.#changed);
  }

  #tick(on: boolean): void {
    if (on && this.#clock === null) this.#clock = window.setInterval(() => (this.now = Date.now()), 200);
    if (!on && this.#clock !== null) {
      clearInterval(this.#clock);
      this.#clock = null;
    }
  }

  #stick = true;

  override updated(): void {
    const last = [...this.renderRoot.querySelectorAll(".output pre")].at(-1);
    if (last && this.run.running && this.#stick) last.scrollTop = last.scrollHeight;
  }

  #scrolled(event: Event): void {
    const output = event.currentTarget as HTMLElement;
    this.#stick = output.scrollTop + output.clientHeight >= output.scrollHeight - 40;
  }

  #ask(name: string, detail: unknown): void {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }

  override render() {
    const run = this.run;
    const first = run.code.split("\n").find((line) => line.trim() && !line.trim().startsWith("#")) ?? run.code.trim().split("\n")[0] ?? "";
    return html`<article aria-label=${`Run ${run.key}`} aria-busy=${run.running ? "true" : "false"}>
      <div class="bar">
        <button class="quiet toggle" aria-expanded=${this.open ? "true" : "false"} @click=${() => this.#ask("toggle-run", run)}>
          ${this.#outcome()}<span class="first mono">${first.trim()}</span>
        </button>
        <span class="time">${this.#time()}</span>
        ${run.receipt ? this.#receipt(run.receipt) : nothing}
      </div>
      ${this.open ? this.#body() : nothing}
    </article>`;
  }

  #outcome(): TemplateResult {
    const run = this.run;
    const shown = (kind: string, sign: Icon, text: string) => html`<span class="outcome ${kind}">${icon(sign)}${text}</span>`;
    if (run.problem?.code === "stopped") return shown("halted", "halt", "Stopped");
    if (run.problem) return shown("bad", "bad", run.parts.length ? "Broke off" : "Did not run");
    if (!run.result) return html`<span class="outcome"><span class="spinner"></span>${run.stopping ? "Stopping" : "Running"}</span>`;
    const reason = String(run.result.meta.reason ?? "");
    return shown(...look(reason, run.result.exit_code), outcome(reason, run.result.exit_code));
  }

  #time(): string {
    const run = this.run;
    if (run.result) return seconds(run.result.duration);
    return run.running ? `${((Date.now() - run.started) / 1000).toFixed(1)} s` : "";
  }

  #receipt(receipt: Receipt) {
    return html`<button class="quiet small receipt" title="What was enforced" aria-label=${`Receipt: ${receipt.level}`}
      @click=${() => this.#ask("show-receipt", receipt)}>${picture(receipt)}<span class="word">${receipt.level}</span></button>`;
  }

  #body() {
    const run = this.run;
    const groups = grouped(run.parts);
    const files = run.files.filter((file) => !(PICTURES.test(file.path) && file.content_base64));
    const pictures = run.files.filter((file) => PICTURES.test(file.path) && file.content_base64);
    const empty = !groups.length && !run.files.length && !run.problem && !run.running;
    return html`<div class="body">
      ${groups.length
        ? html`<div class="output" role="group" aria-label="Output">
            ${repeat(groups, (_, at) => at, (group) => this.#group(group))}
          </div>`
        : nothing}
      ${empty ? html`<p class="muted">Nothing was printed.</p>` : nothing}
      ${run.problem ? html`<div class="notice" role="alert"><strong>${run.problem.title}</strong>${run.problem.advice}</div>` : nothing}
      ${pictures.map((file) => html`<div><h3>${name(file)}</h3><fume-value .bundle=${this.#picture(file)}></fume-value></div>`)}
      ${files.length
        ? html`<div><h3>Files</h3><div class="files">
            ${files.map((file) => html`<button class="small" @click=${() => this.#ask("download", { run, file })} title=${visible(file.path)}>
              ${icon("down")}<span class="name">${name(file)}</span><span class="muted">${bytes(file.size)}</span></button>`)}
          </div></div>`
        : nothing}
      ${this.#notes()}
      ${run.running ? nothing : this.#foot()}
    </div>`;
  }

  #group(group: Part[]): TemplateResult {
    const first = group[0]!;
    if (first.kind === "value") return html`<fume-value .bundle=${first.bundle}></fume-value>`;
    if (first.kind === "gap") return html`<p class="muted small">… ${leftOut(first)}: write to a file in /tmp/output what you want whole.</p>`;
    const pieces = (group as { text: string }[]).map(({ text }) => html`<span>${text}</span>`);
    return first.stream === "stderr"
      ? html`<div><span class="label">stderr</span><pre class="stderr" tabindex="0" aria-label="stderr" @scroll=${this.#scrolled}>${pieces}</pre></div>`
      : html`<pre tabindex="0" aria-label="stdout" @scroll=${this.#scrolled}>${pieces}</pre>`;
  }

  #notes() {
    const meta = this.run.result?.meta ?? {};
    const notes: unknown[] = [];
    if (meta.reason === "timeout") notes.push(`It was ended after ${seconds(Number(meta.timeout ?? 0))}. A longer time can be chosen beside Run.`);
    if (meta.state === "lost") notes.push("The variables of this session are gone; its files are kept.");
    if (meta.truncated) notes.push("There was more output than is kept.");
    if (meta.results_truncated) notes.push("There were more values than are kept.");
    if (Array.isArray(meta.files_left_out) && meta.files_left_out.length)
      notes.push(`${plural(counted(meta.files_left_out), "more file")} in /tmp/output: see Files.`);
    if (meta.timeout_clamped) notes.push(`The server allows ${seconds(Number(meta.timeout ?? 0))} at most.`);
    const missing = /^ModuleNotFoundError: No module named '([\w.]+)'/m.exec(this.run.result?.stderr ?? "")?.[1]?.split(".")[0];
    if (missing)
      notes.push(html`${missing} is not in this session.
        <button class="link" @click=${() => this.#ask("with-package", missing)}>Start a session with ${missing}</button>`);
    return notes.map((note) => html`<p class="muted small">${note}</p>`);
  }

  #foot() {
    const run = this.run;
    return html`<div class="foot small">
      <button class="link small" @click=${() => this.#ask("use-code", run.code)}>Put its code in the editor</button>
      ${run.text ? html`<button class="link small" @click=${() => this.#ask("copy", run.text)}>Copy the output</button>` : nothing}
      ${run.result && run.result.exit_code !== 0 ? html`<span class="muted">exit code ${run.result.exit_code}</span>` : nothing}
    </div>`;
  }

  #picture(file: FileEntry): Record<string, string> {
    let bundle = this.#pictures.get(file);
    if (!bundle) {
      const mime = MIMES[file.path.split(".").at(-1)!.toLowerCase()]!;
      const content = file.content_base64!;
      bundle = { [mime]: mime === "image/svg+xml" ? decodeText(content) : content, "text/plain": name(file) };
      this.#pictures.set(file, bundle);
    }
    return bundle;
  }
}
customElements.define("fume-run", FumeRun);

function name(file: FileEntry): string {
  return visible(file.path.split("/").at(-1) ?? file.path);
}

/** How many files these are: the last may stand for more, which have no path. */
function counted(leftOut: LeftOut[]): number {
  const more = /^(\d+) more$/.exec(leftOut.at(-1)!.path === "…" ? leftOut.at(-1)!.why : "")?.[1];
  return more ? leftOut.length - 1 + Number(more) : leftOut.length;
}

function decodeText(base64: string): string {
  return new TextDecoder().decode(Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)));
}

/** Text pieces of one stream that follow each other are one block; every value is its own. */
function grouped(parts: Part[]): Part[][] {
  const groups: Part[][] = [];
  for (const part of parts) {
    const last = groups.at(-1)?.[0];
    if (part.kind === "text" && last?.kind === "text" && last.stream === part.stream) groups.at(-1)!.push(part);
    else groups.push([part]);
  }
  return groups;
}
