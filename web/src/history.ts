/** What ran before, of this token: each with its code, its output and its receipt. */

import { LitElement, css, html, nothing } from "lit";
import { Client, HistoryRow, Receipt } from "./api.js";
import { icon } from "./icons.js";
import "./receipt.js";
import { base } from "./styles.js";
import { Said, look, outcome, said, seconds, when } from "./words.js";

interface Recorded {
  code?: string | null;
  command?: string[] | null;
  path?: string | null;
  result?: { stdout?: string; stderr?: string; meta?: Record<string, unknown> };
  [more: string]: unknown;
}

const PAGE = 30;
const DID: Record<string, string> = { exec: "$ ", write: "wrote ", edit: "edited " };

export class FumeHistory extends LitElement {
  static override properties = {
    client: { attribute: false },
    policy: {},
    rows: { state: true },
    open: { state: true },
    records: { state: true },
    problem: { state: true },
    more: { state: true },
    loading: { state: true },
  };
  declare client: Client;
  declare policy: string;
  declare rows: HistoryRow[];
  declare open: string | null;
  declare records: Map<string, Recorded | Said>;
  declare problem: Said | null;
  declare more: boolean;
  declare loading: boolean;
  static override styles = [
    base,
    css`
      li { border-top: 1px solid var(--line); }
      li:first-child { border-top: 0; }
      .row { display: flex; flex-wrap: wrap; gap: 0.1rem 0.8rem; width: 100%; justify-content: start; text-align: left; padding: 0.45rem 0.4rem; }
      .outcome { display: inline-flex; align-items: center; gap: 0.4rem; font-weight: 600; min-width: 6rem; }
      .good { color: var(--good); }
      .bad { color: var(--bad); }
      .halted { color: var(--warn); }
      .what { flex: 1 1 9rem; min-width: 0; overflow: hidden; text-overflow: ellipsis; }
      .level { min-width: 3.4rem; }
      .detail { padding: 0.3rem 0.4rem 1rem; display: grid; grid-template-columns: minmax(0, 1fr); gap: 0.8rem; }
      h3 { font-size: 0.8rem; font-weight: 600; color: var(--muted); margin-bottom: 0.3rem; }
      pre { background: var(--sunken); border-radius: 8px; padding: 0.6rem 0.8rem; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 18rem; overflow: auto; }
      .top { display: flex; align-items: center; gap: 1rem; margin-bottom: 0.4rem; }
      .top p { flex: 1; }
    `,
  ];

  constructor() {
    super();
    this.rows = [];
    this.open = null;
    this.records = new Map();
    this.problem = null;
    this.more = false;
    this.loading = false;
  }

  async load(older = false): Promise<void> {
    const before = older ? this.rows.at(-1)?.execution_id : undefined;
    this.loading = true;
    try {
      const query = before ? `?limit=${PAGE}&before=${encodeURIComponent(before)}` : `?limit=${PAGE}`;
      const answer = await this.client.get<HistoryRow[] | { history?: HistoryRow[]; executions?: HistoryRow[] }>(`history${query}`);
      const rows = Array.isArray(answer) ? answer : (answer.executions ?? answer.history ?? []);
      this.rows = older ? [...this.rows, ...rows] : rows;
      this.more = rows.length === PAGE;
      this.problem = null;
    } catch (error) {
      this.problem = said(error);
    }
    this.loading = false;
  }

  async #toggle(id: string): Promise<void> {
    this.open = this.open === id ? null : id;
    if (this.open === null || this.records.has(id)) return;
    let found: Recorded | Said;
    try {
      found = await this.client.get<Recorded>(`history/${encodeURIComponent(id)}`);
    } catch (error) {
      found = said(error);
    }
    this.records = new Map(this.records).set(id, found);
  }

  override render() {
    return html`
      <div class="top">
        <p class="small muted">${this.policy}</p>
        <button class="quiet small" ?disabled=${this.loading} @click=${() => this.load()}>Refresh</button>
      </div>
      ${this.problem ? html`<div class="notice" role="alert"><strong>${this.problem.title}</strong>${this.problem.advice}</div>` : nothing}
      ${!this.rows.length && !this.problem ? html`<p class="muted">${this.loading ? "Loading…" : "Nothing is on record yet."}</p>` : nothing}
      <ol>${this.rows.map((row) => this.#row(row))}</ol>
      ${this.more ? html`<button class="small" ?disabled=${this.loading} @click=${() => this.load(true)}>Show older</button>` : nothing}
    `;
  }

  #row(row: HistoryRow) {
    const open = this.open === row.execution_id;
    const [kind, sign] = look(row.reason, row.exit_code);
    const ran = row.kind !== "write" && row.kind !== "edit"; // nothing was enforced where nothing ran
    return html`<li>
      <button class="quiet row" aria-expanded=${open ? "true" : "false"} @click=${() => this.#toggle(row.execution_id)}>
        <span class="outcome ${kind}">${icon(sign)}${outcome(row.reason, row.exit_code)}</span>
        <span class="what mono">${DID[row.kind ?? ""] ?? ""}${row.title || row.language}</span>
        <span class="small muted">${when(row.time)}</span>
        <span class="small muted">${seconds(row.duration)}</span>
        <span class="small muted level">${ran ? row.level : ""}</span>
      </button>
      ${open ? this.#detail(row.execution_id) : nothing}
    </li>`;
  }

  #detail(id: string) {
    const found = this.records.get(id);
    if (!found) return html`<p class="detail muted">Loading…</p>`;
    if ("advice" in found) return html`<div class="detail"><div class="notice"><strong>${(found as Said).title}</strong>${(found as Said).advice}</div></div>`;
    const record = found as Recorded;
    const result = record.result ?? {};
    const receipt = (result.meta?.isolation ?? record.receipt ?? null) as Receipt | null;
    const asked = record.command?.length ? record.command.join(" ") : record.code;
    return html`<div class="detail">
      ${asked
        ? html`<section><h3>${record.command?.length ? "Command" : (record.path ?? "Code")}</h3><pre tabindex="0" aria-label="Code">${asked}</pre>
            ${record.command?.length ? nothing : html`<button class="link small" @click=${() => this.#use(String(record.code))}>Put it in the editor</button>`}</section>`
        : nothing}
      ${result.stdout ? html`<section><h3>stdout</h3><pre tabindex="0" aria-label="stdout">${result.stdout}</pre></section>` : nothing}
      ${result.stderr ? html`<section><h3>stderr</h3><pre tabindex="0" aria-label="stderr">${result.stderr}</pre></section>` : nothing}
      ${receipt ? html`<section><h3>Receipt: what was enforced</h3><fume-receipt .receipt=${receipt}></fume-receipt></section>` : nothing}
      <p class="small muted mono">${id}</p>
    </div>`;
  }

  #use(code: string): void {
    this.dispatchEvent(new CustomEvent("use-code", { detail: code, bubbles: true, composed: true }));
  }
}
customElements.define("fume-history", FumeHistory);
