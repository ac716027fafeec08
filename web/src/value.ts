/** One value of a run, in the best form that can be shown safely. */

import { LitElement, css, html, nothing } from "lit";
import { Bundle } from "./api.js";
import "./frame.js";
import { icon } from "./icons.js";
import { fromBase64 } from "./run.js";
import { base } from "./styles.js";
import { plural } from "./words.js";

interface TableData {
  schema?: { fields?: { name: string; type?: string }[] };
  data: Record<string, unknown>[];
  total_rows?: number;
}

const TABLE = "application/vnd.dataresource+json";
const NUMERIC = /^(u?int|float|decimal|number)/i;

export class FumeValue extends LitElement {
  static override properties = { bundle: { attribute: false } };
  declare bundle: Bundle;
  #url: { bundle: Bundle; mime: string; href: string } | null = null;
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

  override render() {
    const bundle = this.bundle;
    const table = bundle[TABLE] as TableData | undefined;
    if (table && Array.isArray(table.data)) return tableOf(table);
    for (const mime of ["image/png", "image/jpeg", "image/gif", "image/webp"]) {
      if (typeof bundle[mime] === "string") return this.#image(mime, fromBase64(bundle[mime]));
    }
    // In an <img> nothing of an SVG runs or is loaded.
    if (typeof bundle["image/svg+xml"] === "string") return this.#image("image/svg+xml", bundle["image/svg+xml"]);
    if (typeof bundle["text/html"] === "string") return html`<fume-frame .source=${bundle["text/html"]}></fume-frame>`;
    for (const mime of ["text/markdown", "text/latex"]) if (typeof bundle[mime] === "string") return html`<pre>${bundle[mime]}</pre>`;
    if (bundle["application/json"] !== undefined) return html`<pre>${JSON.stringify(bundle["application/json"], null, 2)}</pre>`;
    return html`<pre>${String(bundle["text/plain"] ?? "")}</pre>`;
  }

  #image(mime: string, data: Uint8Array<ArrayBuffer> | string) {
    if (this.#url?.bundle !== this.bundle) {
      if (this.#url) URL.revokeObjectURL(this.#url.href);
      this.#url = { bundle: this.bundle, mime, href: URL.createObjectURL(new Blob([data], { type: mime })) };
    }
    const plain = String(this.bundle["text/plain"] ?? "");
    const name = `figure.${mime.slice(6).replace("svg+xml", "svg")}`;
    return html`<figure>
      <img src=${this.#url.href} alt=${plain && !/^<.* object at/.test(plain) ? `Figure: ${plain.slice(0, 120)}` : "Figure that the program made"} />
      <a href=${this.#url.href} download=${name} aria-label="Download this figure" title="Download">${icon("down")}</a>
    </figure>`;
  }
}
customElements.define("fume-value", FumeValue);

function tableOf(table: TableData) {
  const fields = table.schema?.fields ?? Object.keys(table.data[0] ?? {}).map((name) => ({ name, type: undefined }));
  const total = table.total_rows ?? table.data.length;
  const number = fields.map(({ name, type }) => (type ? NUMERIC.test(type) : typeof table.data[0]?.[name] === "number"));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Table">
      <table>
        <thead><tr>${fields.map(({ name }, at) => html`<th scope="col" class=${number[at] ? "number" : ""}>${name}</th>`)}</tr></thead>
        <tbody>${table.data.map(
          (row) => html`<tr>${fields.map(({ name }, at) => html`<td class=${number[at] ? "number" : ""}>${cell(row[name])}</td>`)}</tr>`,
        )}</tbody>
      </table>
    </div>
    <p class="small muted">${total > table.data.length ? `The first ${table.data.length} of ` : nothing}${plural(total, "row")},
      ${plural(fields.length, "column")}</p>`;
}

function cell(value: unknown) {
  if (value === null || value === undefined) return html`<span class="empty">empty</span>`;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
