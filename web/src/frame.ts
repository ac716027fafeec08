/** HTML that a program made. It never becomes part of the page: it is shown in a frame that can run and reach nothing.
 *
 * The frame takes over the page's policy, where styles need the nonce of this answer of the server. So the styles of the
 * HTML, its `style` attributes too, are collected in one sheet that has it. Scripts would not run; they are taken out so
 * that the console stays quiet.
 */

import { LitElement, css, html } from "lit";
import { base } from "./styles.js";

const ROW = 27;
const PAPER = `html{background:#fff;color:#1d2321;font:14px/1.5 system-ui,sans-serif;color-scheme:light}
body{margin:8px;overflow-wrap:anywhere}table{border-collapse:collapse}th,td{padding:3px 10px;text-align:left;border-bottom:1px solid #ddd}
td{font-variant-numeric:tabular-nums}img,svg{max-width:100%}`;

export function nonce(): string {
  return document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content ?? "";
}

export function sealedDocument(source: string): { text: string; height: number } {
  // Inert: nothing is loaded and nothing runs in a template. The browser would still report each attribute that the policy
  // forbids, so these have another name before it reads them; what this misses is refused all the same.
  const holder = document.createElement("template");
  holder.innerHTML = source.replace(/<[a-z][^>]*>/gi, (tag) => tag.replace(/([\s"'/])(style|on\w+)(?=\s*=)/gi, "$1data-fume-$2"));
  const made = holder.content;
  for (const element of made.querySelectorAll("script, iframe, frame, object, embed, link, meta, base, form")) {
    if (element.localName === "form") element.replaceWith(...element.childNodes);
    else element.remove();
  }
  const rules = [PAPER];
  for (const style of made.querySelectorAll("style")) {
    rules.push(style.textContent ?? "");
    style.remove();
  }
  let styled = 0;
  for (const element of made.querySelectorAll("*")) {
    for (const { name, value } of [...element.attributes]) {
      const loads = (name === "src" || name === "srcset" || name === "poster") && !value.startsWith("data:");
      if (/^(data-fume-)?on/.test(name) || loads) element.removeAttribute(name);
    }
    const style = element.getAttribute("data-fume-style");
    if (style === null) continue;
    element.removeAttribute("data-fume-style");
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(`a{${style}}`); // read by the browser, so that it cannot end its rule early
    const first = sheet.cssRules[0];
    if (!(first instanceof CSSStyleRule)) continue;
    element.setAttribute("data-fume", String(++styled));
    rules.push(`[data-fume="${styled}"]{${first.style.cssText}}`);
  }
  const own = nonce();
  const policy = `default-src 'none'; img-src data:; style-src ${own ? `'nonce-${own}'` : "'none'"}`;
  const sheet = own ? `<style nonce="${own}">${rules.join("\n").replace(/<\//g, "<\\/")}</style>` : "";
  const rows = made.querySelectorAll("tr, li, br, pre, div").length + 1.7 * made.querySelectorAll("p, h1, h2, h3, h4").length;
  const lines = Math.ceil((made.textContent ?? "").length / 90);
  const pictures = made.querySelectorAll("img[src], svg, canvas").length;
  const height = Math.min(420, Math.max(56, 24 + Math.max(rows * ROW, lines * 22) + pictures * 240));
  return { text: `<!doctype html><meta http-equiv="Content-Security-Policy" content="${policy}">${sheet}<body>${holder.innerHTML}`, height };
}

export class FumeFrame extends LitElement {
  static override properties = { source: {}, tall: { state: true } };
  declare source: string;
  declare tall: boolean;
  #made: { source: string; text: string; height: number } | null = null;
  static override styles = [
    base,
    css`
      iframe { display: block; width: 100%; border: 1px solid var(--line); border-radius: 8px; background: #fff; resize: vertical; }
      div { display: flex; justify-content: end; }
    `,
  ];

  override render() {
    if (this.#made?.source !== this.source) this.#made = { source: this.source, ...sealedDocument(this.source) };
    return html`<iframe sandbox="" srcdoc=${this.#made.text} title="HTML that the program made" tabindex="0"
        referrerpolicy="no-referrer" loading="eager"></iframe>
      ${this.#made.height >= 420
        ? html`<div><button class="link small" aria-expanded=${this.tall ? "true" : "false"} @click=${() => (this.tall = !this.tall)}>
            ${this.tall ? "Less" : "Taller"}</button></div>`
        : ""}`;
  }

  override updated(): void {
    const frame = this.renderRoot.querySelector("iframe")!;
    frame.style.height = this.tall ? "85vh" : `${this.#made!.height}px`;
  }
}
customElements.define("fume-frame", FumeFrame);
