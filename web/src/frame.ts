/** HTML that a program made. It never becomes part of the page: what clean.ts leaves of it is shown in a frame that can run
 * and reach nothing.
 *
 * The cleaning comes first and is what keeps the browser from fetching: a policy refuses a request, but a browser may have
 * looked up the name and connected by then. The frame takes over the page's policy, where styles need the nonce of this
 * answer of the server. So all styles of the HTML are in one sheet that has it.
 */

import { LitElement, css, html, nothing } from "lit";
import { cleanHtml } from "./clean.js";
import { base } from "./styles.js";

const ROW = 27;
const PAPER = `html{background:#fff;color:#1d2321;font:14px/1.5 system-ui,sans-serif;color-scheme:light}
body{margin:8px;overflow-wrap:anywhere}table{border-collapse:collapse}th,td{padding:3px 10px;text-align:left;border-bottom:1px solid #ddd}
td{font-variant-numeric:tabular-nums}img,svg{max-width:100%}`;

const HINTS = `<meta http-equiv="x-dns-prefetch-control" content="off"><meta name="referrer" content="no-referrer">`;

// What shows something that is no text.
const SEEN = "img[src], svg, input, progress, meter, hr, td, th";
const COLOURED = /background|border|content/;

export function nonce(): string {
  return document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content ?? "";
}

const LACKING = "This output needs scripts or a connection, which the page does not give it.";

const PLAIN = "This output is shown without its style sheets: they are too large for it.";

interface Sealed {
  text: string;
  height: number;
  isEmpty: boolean;
  note: string;
}

export function sealedDocument(source: string): Sealed {
  const { body, rules, why, isLacking, isPlain } = cleanHtml(source);
  const own = nonce();
  const policy = `default-src 'none'; img-src data:; style-src ${own ? `'nonce-${own}'` : "'none'"}; base-uri 'none'; form-action 'none'`;
  const sheet = own ? `<style nonce="${own}">${[PAPER, ...rules].join("\n").replaceAll("<", "")}</style>` : "";
  const rows = body.querySelectorAll("tr, li, br, pre, div").length + 1.7 * body.querySelectorAll("p, h1, h2, h3, h4").length;
  const lines = Math.ceil((body.textContent ?? "").length / 90);
  const pictures = body.querySelectorAll("img[src], svg").length;
  const height = Math.min(420, Math.max(56, 24 + Math.max(rows * ROW, lines * 22) + pictures * 240));
  const isEmpty = !body.textContent?.trim() && !body.querySelector(SEEN) && !COLOURED.test(rules.join());
  const note = why ? `This output is shown as text: it is ${why}.` : isEmpty || (isLacking && !pictures) ? LACKING : isPlain ? PLAIN : "";
  const text = `<!doctype html><meta http-equiv="Content-Security-Policy" content="${policy}">${HINTS}${sheet}<body>${body.innerHTML}`;
  return { text, height, isEmpty, note };
}

export class FumeFrame extends LitElement {
  static override properties = { source: {}, plain: {}, tall: { state: true } };
  declare source: string;
  declare plain: string; // what stands for it where nothing of it can be seen
  declare tall: boolean;
  #made: (Sealed & { source: string }) | null = null;
  static override styles = [
    base,
    css`
      iframe { display: block; width: 100%; border: 1px solid var(--line); border-radius: 8px; background: #fff; resize: vertical; }
      div { display: flex; justify-content: end; }
      pre { white-space: pre-wrap; overflow-wrap: anywhere; }
    `,
  ];

  override render() {
    if (this.#made?.source !== this.source) this.#made = { source: this.source, ...sealedDocument(this.source) };
    const { isEmpty, note } = this.#made;
    if (isEmpty) return html`<p class="small muted">${note}</p>${this.plain ? html`<pre>${this.plain}</pre>` : nothing}`;
    return html`<iframe sandbox="" srcdoc=${this.#made.text} title="HTML that the program made" tabindex="0"
        referrerpolicy="no-referrer" loading="eager"></iframe>
      ${this.#made.height >= 420
        ? html`<div><button class="link small" aria-expanded=${this.tall ? "true" : "false"} @click=${() => (this.tall = !this.tall)}>
            ${this.tall ? "Less" : "Taller"}</button></div>`
        : nothing}${note ? html`<p class="small muted">${note}</p>` : nothing}`;
  }

  override updated(): void {
    const frame = this.renderRoot.querySelector("iframe");
    if (frame) frame.style.height = this.tall ? "85vh" : `${this.#made!.height}px`;
  }
}
customElements.define("fume-frame", FumeFrame);
