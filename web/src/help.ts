/** Keys, and what this server is. */

import { LitElement, css, html, nothing } from "lit";
import { Info } from "./api.js";
import { icon } from "./icons.js";
import { closeOutside } from "./receipt.js";
import { base } from "./styles.js";
import { seconds } from "./words.js";

export const MOD = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";
const KEYS: [keys: string[], what: string][] = [
  [[MOD, "Enter"], "Run"],
  [["Esc"], "Stop what runs; otherwise leave the editor"],
  [["Ctrl", "."], "Stop what runs"],
  [[MOD, "F"], "Search in the editor"],
  [[MOD, "/"], "Turn lines into comments"],
];
const SINGLE: [key: string, what: string][] = [
  ["e", "Editor"],
  ["o", "Output"],
  ["f", "Files"],
  ["h", "History"],
  ["s", "Sessions"],
  ["t", "Theme"],
  ["?", "This help"],
];
const STORED = "fumehood.single-keys";

export function singleKeys(): boolean {
  return localStorage.getItem(STORED) !== "off";
}

export class FumeHelp extends LitElement {
  static override properties = { info: { attribute: false } };
  declare info: Info | null;
  static override styles = [
    base,
    css`
      h3 { font-size: 0.95rem; margin: 1rem 0 0.3rem; }
      dl { display: grid; grid-template-columns: 7rem minmax(0, 1fr); gap: 0.4rem 1rem; }
      dl.two { grid-template-columns: 7rem minmax(0, 1fr) 2rem minmax(0, 1fr); }
      @media (max-width: 699px) { dl.two { grid-template-columns: 7rem minmax(0, 1fr); } }
      dd { overflow-wrap: anywhere; }
      label { display: flex; gap: 0.5rem; align-items: center; margin-top: 0.6rem; }
      input { min-height: 0; width: 1.1rem; height: 1.1rem; accent-color: var(--accent); }
      .keys { display: flex; gap: 0.25rem; align-items: baseline; }
    `,
  ];

  show(): void {
    this.renderRoot.querySelector("dialog")!.showModal();
  }

  override render() {
    return html`<dialog aria-labelledby="title" @click=${closeOutside}>
      <div>
        <header>
          <h2 id="title">Keys and help</h2>
          <form method="dialog"><button class="quiet" aria-label="Close">${icon("close")}</button></form>
        </header>
        <dl>${KEYS.map(([keys, what]) => html`<dt class="keys">${keys.map((key) => html`<kbd>${key}</kbd>`)}</dt><dd>${what}</dd>`)}</dl>
        <h3>Outside of the editor</h3>
        <dl class="two">${SINGLE.map(([key, what]) => html`<dt class="keys"><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
        <label><input type="checkbox" ?checked=${singleKeys()} @change=${this.#single} />Single keys work</label>
        <h3>Good to know</h3>
        <p class="small">A session remembers variables, imports and files from one run to the next. Save to <code>/tmp/output</code> what you want back;
          <code>display(value)</code> shows a figure or a table. Each run has a receipt: what was really enforced, found by doing it.</p>
        ${this.#about()}
      </div>
    </dialog>`;
  }

  #single(event: Event): void {
    localStorage.setItem(STORED, (event.currentTarget as HTMLInputElement).checked ? "on" : "off");
  }

  #about() {
    const info = this.info;
    if (!info) return nothing;
    const limits = (info.limits ?? {}) as Record<string, unknown>;
    const number = (value: unknown) => (typeof value === "number" ? value : null);
    const memory = (number(limits.memory_bytes) ?? 0) / 1048576;
    const longest = number(limits.max_timeout_s);
    const rows: [string, unknown][] = [
      ["Version", info.version],
      ["Backend", info.backend],
      ["Isolation", info.level],
      ["Network", info.network === undefined ? null : info.network ? "programs may use it" : "none for programs"],
      ["Memory", memory ? `${Math.round(memory)} MiB for a program` : null],
      ["Longest run", longest ? seconds(longest) : null],
    ];
    return html`<h3>This server</h3>
      <dl>${rows.filter(([, value]) => value).map(([name, value]) => html`<dt class="muted">${name}</dt><dd>${value}</dd>`)}</dl>
      <p class="small"><a href="assets/licenses.txt" target="_blank" rel="noopener">Licences of what this page contains</a></p>`;
  }
}
customElements.define("fume-help", FumeHelp);
