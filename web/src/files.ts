/** The files of a session: put some in, take some out. */

import { LitElement, css, html, nothing } from "lit";
import { FileEntry, LeftOut } from "./api.js";
import { icon } from "./icons.js";
import { base } from "./styles.js";
import { bytes, visible } from "./words.js";

export class FumeFiles extends LitElement {
  static override properties = { files: { attribute: false }, leftOut: { attribute: false }, busy: {}, hasSession: { type: Boolean } };
  declare files: FileEntry[];
  declare leftOut: LeftOut[];
  declare busy: string;
  declare hasSession: boolean;
  static override styles = [
    base,
    css`
      .zone { border: 1.5px dashed var(--control); border-radius: 12px; padding: 1rem; text-align: center; display: grid; justify-items: center; gap: 0.5rem; margin-bottom: 1rem; }
      h3 { font-size: 0.8rem; font-weight: 600; color: var(--muted); margin: 0.9rem 0 0.3rem; }
      li { display: flex; align-items: center; gap: 0.2rem 0.6rem; flex-wrap: wrap; padding: 0.3rem 0; border-top: 1px solid var(--line); }
      .name { flex: 1 1 12rem; min-width: 0; overflow-wrap: anywhere; }
      .size { font-variant-numeric: tabular-nums; }
    `,
  ];

  #ask(name: string, detail: unknown): void {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }

  #chosen(event: Event): void {
    const input = event.currentTarget as HTMLInputElement;
    if (input.files?.length) this.#ask("upload", [...input.files]);
    input.value = "";
  }

  override render() {
    const results = this.files.filter((file) => file.path.startsWith("/tmp/output/"));
    const others = this.files.filter((file) => !file.path.startsWith("/tmp/output/"));
    return html`
      <div class="zone">
        <p>Drop files anywhere on this page, or choose them.</p>
        <button @click=${() => this.renderRoot.querySelector("input")!.click()}>${icon("plus")}Add files</button>
        <input type="file" multiple hidden aria-label="Files to add" @change=${this.#chosen} />
        <p class="small muted" role="status">${this.busy || html`They go to <code>/workspace</code>, where programs start: <code>open("data.csv")</code> finds them.`}</p>
      </div>
      ${this.#list("Results", results)} ${this.#list(results.length ? "In the session" : "Files", others)} ${this.#withheld()}
      ${this.files.length + this.leftOut.length ? nothing : html`<p class="muted">${this.hasSession ? "There are no files in this session yet." : "A session starts with the first run or the first file."}</p>`}
    `;
  }

  #withheld() {
    if (!this.leftOut.length) return nothing;
    return html`<h3>Cannot be downloaded</h3>
      <ul aria-label="Cannot be downloaded">
        ${this.leftOut.map(({ path, why }) => html`<li><span class="name mono">${visible(short(path))}</span><span class="small muted">${visible(why)}</span></li>`)}
      </ul>`;
  }

  #list(heading: string, files: FileEntry[]) {
    if (!files.length) return nothing;
    return html`<h3>${heading}</h3>
      <ul aria-label=${heading}>
        ${files.map((file) => {
          const name = visible(short(file.path));
          return html`<li>
            <span class="name mono">${name}</span>
            <span class="size small muted">${bytes(file.size)}</span>
            <button class="quiet small" aria-label=${`Insert the path of ${name}`} @click=${() => this.#ask("insert", JSON.stringify(file.path.replace(/^\/workspace\//, "")))}>Insert path</button>
            <button class="quiet small" aria-label=${`Download ${name}`} @click=${() => this.#ask("download", { file })}>${icon("down")}Download</button>
          </li>`;
        })}
      </ul>`;
  }
}
customElements.define("fume-files", FumeFiles);

function short(path: string): string {
  return path.replace(/^\/(workspace|tmp\/output)\//, "");
}
