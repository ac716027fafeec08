/** One value of a run, in the best form that can be shown safely. */

import { LitElement, PropertyValues, TemplateResult, css, html } from "lit";
import { Bundle } from "./api.js";
import { cleanSvg } from "./clean.js";
import "./frame.js";
import { icon } from "./icons.js";
import { jsonOf } from "./json.js";
import { cut } from "./markup.js";
import { fromBase64, plainOf } from "./run.js";
import { base } from "./styles.js";
import { plural } from "./words.js";

/** A table as it should be; the program may have made anything. */
interface TableData {
  schema?: { fields?: { name: unknown; type?: unknown }[] } | null;
  data: Record<string, unknown>[];
  total_rows?: unknown;
}

const TABLE = "application/vnd.dataresource+json";
const FORMS = [TABLE, "image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml", "text/html", "text/markdown", "text/latex", "application/json"];
const CELLS = 20_000; // that are shown of a table: its first rows and columns
const COLUMNS = 200;
const CELL = 1000; // characters that are shown of one
const NUMERIC = /^(u?int|float|decimal|number)/i;

export class FumeValue extends LitElement {
  static override properties = { bundle: { attribute: false } };
  declare bundle: Bundle;
  #url: { bundle: Bundle; mime: string; href: string } | null = null;
  #failed = new Set<string>(); // forms that turned out to be none
  #drawn: { source: string; clean: string | null } | null = null;
  static override styles = [
    base,
    css`
      pre { white-space: pre-wrap; overflow-wrap: anywhere; }
      .scroll { overflow: auto; max-height: 26rem; width: fit-content; max-width: 100%; border: 1px solid var(--line); border-radius: 8px; }
      table { border-collapse: separate; border-spacing: 0; font-size: 0.867rem; }
      th, td { padding: 0.3rem 0.8rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; max-width: 24rem; overflow: hidden; text-overflow: ellipsis; }
      thead th { position: sticky; top: 0; background: var(--sunken); font-weight: 600; }
      tbody tr:last-child td, tbody tr:last-child th { border-bottom: 0; }
      .number { text-align: right; font-variant-numeric: tabular-nums; }
      .empty { color: var(--muted); font-style: italic; }
      figure { position: relative; width: fit-content; max-width: 100%; }
      img { display: block; max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: 8px; }
      figure a { position: absolute; top: 0.5rem; right: 0.5rem; display: flex; padding: 0.4rem; border-radius: 6px; background: var(--raised); color: var(--text); border: 1px solid var(--line); opacity: 0; }
      figure:hover a, figure a:focus-visible { opacity: 1; }
      @media (hover: none) { figure a { opacity: 0.9; } }
      p { margin-top: 0.3rem; }
    `,
  ];

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    if (this.#url) URL.revokeObjectURL(this.#url.href);
    this.#url = null;
  }

  override willUpdate(changed: PropertyValues): void {
    if (changed.has("bundle")) this.#failed.clear();
  }

  override render() {
    for (const mime of FORMS) {
      if (this.#failed.has(mime)) continue;
      try {
        const shown = this.#form(mime, this.bundle[mime]);
        if (shown) return shown;
      } catch {
        this.#failed.add(mime); // it is not what it says; the next form may be
      }
    }
    return html`<pre>${plainOf(this.bundle)}</pre>`;
  }

  /** What a person can read of it as text; not where it lies in memory. */
  get #plain(): string {
    const plain = plainOf(this.bundle);
    return /^<.* object at/.test(plain) ? "" : plain;
  }

  #form(mime: string, form: unknown): TemplateResult | null {
    if (mime === TABLE) return form ? tableOf(form as TableData) : null;
    if (mime === "application/json") return form === undefined ? null : html`<pre>${jsonOf(form)}</pre>`;
    if (typeof form !== "string" || !form.trim()) return null;
    if (mime === "image/svg+xml") return this.#drawing(form);
    if (mime.startsWith("image/")) return this.#image(mime, fromBase64(form));
    if (mime === "text/html") return html`<fume-frame .source=${form} .plain=${this.#plain}></fume-frame>`;
    return html`<pre>${form}</pre>`;
  }

  // In an <img> nothing of an SVG runs or is loaded; it is cleaned for whoever opens it by itself.
  #drawing(source: string) {
    if (this.#drawn?.source !== source) this.#drawn = { source, clean: cleanSvg(source) };
    return this.#drawn.clean === null ? html`<pre>${cut(source)}</pre>` : this.#image("image/svg+xml", this.#drawn.clean);
  }

  #image(mime: string, data: Uint8Array<ArrayBuffer> | string) {
    if (this.#url?.bundle !== this.bundle || this.#url.mime !== mime) {
      if (this.#url) URL.revokeObjectURL(this.#url.href);
      this.#url = { bundle: this.bundle, mime, href: URL.createObjectURL(new Blob([data], { type: mime })) };
    }
    const plain = this.#plain;
    const fail = () => {
      this.#failed.add(mime);
      this.requestUpdate();
    };
    const name = `figure.${mime.slice(6).replace("svg+xml", "svg")}`;
    return html`<figure>
      <img src=${this.#url.href} @error=${fail} alt=${plain ? `Figure: ${plain.slice(0, 120)}` : "Figure that the program made"} />
      <a href=${this.#url.href} download=${name} aria-label="Download this figure" title="Download">${icon("down")}</a>
    </figure>`;
  }
}
customElements.define("fume-value", FumeValue);

function tableOf(table: TableData) {
  const { data } = table;
  if (!Array.isArray(data)) return null;
  const given = table.schema?.fields;
  const all = Array.isArray(given) ? given : Object.keys(data[0] ?? {}).map((name) => ({ name, type: undefined }));
  const fields = all.slice(0, COLUMNS).map(({ name, type }) => ({
    name: String(name),
    isNumber: type ? NUMERIC.test(String(type)) : typeof data[0]?.[String(name)] === "number",
  }));
  const rows = data.slice(0, Math.floor(CELLS / Math.max(1, fields.length)));
  const total = typeof table.total_rows === "number" ? table.total_rows : data.length;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Table">
      <table>
        <thead><tr>${fields.map(({ name, isNumber }) => html`<th scope="col" class=${isNumber ? "number" : ""}>${cut(name, CELL)}</th>`)}</tr></thead>
        <tbody>${rows.map(
          (row) => html`<tr>${fields.map(({ name, isNumber }) => html`<td class=${isNumber ? "number" : ""}>${cell(row[name])}</td>`)}</tr>`,
        )}</tbody>
      </table>
    </div>
    <p class="small muted">${counted("The", rows.length, total, "row")}, ${counted("the", fields.length, all.length, "column")}</p>`;
}

function counted(article: string, shown: number, total: number, what: string): string {
  return `${total > shown ? `${article} first ${shown} of ` : ""}${plural(total, what)}`;
}

function cell(value: unknown) {
  if (value === null || value === undefined) return html`<span class="empty">empty</span>`;
  return typeof value === "object" ? jsonOf(value, CELL, "") : cut(String(value), CELL);
}
