/** Asks for the token where none is known, or where the server refused the one that was. */

import { LitElement, css, html, nothing } from "lit";
import { base } from "./styles.js";

/** From what was entered: the token itself, or the whole address that the server printed. */
export function tokenIn(text: string): string {
  return /[#&]token=([^&\s]+)/.exec(text)?.[1] ?? text.trim();
}

export class FumeGate extends LitElement {
  static override properties = { refused: { type: Boolean }, busy: { type: Boolean } };
  declare refused: boolean;
  declare busy: boolean;
  static override styles = [
    base,
    css`
      :host { min-height: 100dvh; display: grid; place-items: center; padding: 1rem; }
      main { width: min(27rem, 100%); background: var(--surface); border: 1px solid var(--line); border-radius: 16px; padding: 1.8rem; display: grid; gap: 1rem; box-shadow: 0 8px 40px var(--shade); }
      h1 { font-size: 1.35rem; display: flex; align-items: center; gap: 0.6rem; letter-spacing: -0.01em; }
      img { width: 2rem; height: 2rem; }
      form { display: grid; gap: 0.5rem; }
      label { font-weight: 600; }
      input { width: 100%; font-family: var(--mono); }
    `,
  ];

  override firstUpdated(): void {
    this.renderRoot.querySelector("input")!.focus();
  }

  #enter(event: Event): void {
    event.preventDefault();
    const field = this.renderRoot.querySelector("input")!;
    const token = tokenIn(decodeURIComponentSafely(field.value));
    if (token) this.dispatchEvent(new CustomEvent("token", { detail: token }));
    else field.focus();
  }

  override render() {
    return html`<main>
      <h1><img src="assets/icon.svg" alt="" />fumehood</h1>
      <p>A place to run Python, sealed off from the machine it runs on.</p>
      ${this.refused
        ? html`<div class="notice" role="alert"><strong>The server refused this token</strong>It may have been started anew: a token that it made itself changes with every start.</div>`
        : nothing}
      <form @submit=${this.#enter}>
        <label for="token">Access token</label>
        <input id="token" type="password" name="token" autocomplete="current-password" autocapitalize="off" spellcheck="false" aria-describedby="hint" required />
        <p id="hint" class="small muted"><code>fumehood serve</code> printed an address with <code>#token=…</code> when it started.
          Open that, or paste it here. The token stays in this tab.</p>
        <button class="primary" ?disabled=${this.busy}>${this.busy ? "Asking the server…" : "Continue"}</button>
      </form>
    </main>`;
  }
}
customElements.define("fume-gate", FumeGate);

function decodeURIComponentSafely(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
