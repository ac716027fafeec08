/** Which session is used: switch, start another with packages of its own, end one. */

import { LitElement, css, html, nothing } from "lit";
import { Session } from "./api.js";
import { icon } from "./icons.js";
import { base } from "./styles.js";
import { Said, moment, when } from "./words.js";

export function shortName(id: string | null): string {
  return id ? `Session ${id.replace(/[^a-z0-9]/gi, "").slice(-4)}` : "No session yet";
}

export class FumeSessions extends LitElement {
  static override properties = {
    sessions: { attribute: false },
    current: {},
    running: { attribute: false },
    problem: { attribute: false },
    busy: { type: Boolean },
    shown: { state: true },
  };
  declare sessions: Session[];
  declare current: string | null;
  declare running: Set<string>;
  declare problem: Said | null;
  declare busy: boolean;
  declare shown: boolean;
  static override styles = [
    base,
    css`
      .opener { max-width: 12rem; }
      .opener span { overflow: hidden; text-overflow: ellipsis; }
      #menu {
        position: fixed; inset: 3.4rem auto auto 0.75rem; margin: 0; width: min(25rem, calc(100vw - 1.5rem)); max-height: calc(100dvh - 5rem); overflow: auto;
        background: var(--raised); color: var(--text); border: 1px solid var(--line); border-radius: 12px; padding: 0.9rem; box-shadow: 0 8px 32px var(--shade);
      }
      h2 { font-size: 0.95rem; margin-bottom: 0.4rem; }
      li { display: flex; gap: 0.4rem; align-items: center; }
      li .choose { flex: 1; min-width: 0; justify-content: start; text-align: left; flex-wrap: wrap; gap: 0 0.6rem; }
      li .choose[aria-current] { background: var(--accent-soft); font-weight: 600; }
      form { display: grid; gap: 0.5rem; margin-top: 0.8rem; padding-top: 0.8rem; border-top: 1px solid var(--line); }
      label { display: grid; gap: 0.2rem; }
      input { width: 100%; }
      .notice { margin-top: 0.6rem; }
    `,
  ];

  /** Opens the menu with these packages filled in. */
  async open(packages = ""): Promise<void> {
    this.renderRoot.querySelector<HTMLElement>("#menu")!.showPopover();
    const field = this.renderRoot.querySelector<HTMLInputElement>("#packages")!;
    if (packages) {
      field.value = packages;
      field.focus();
    } else {
      (this.renderRoot.querySelector<HTMLElement>(".choose[aria-current]") ?? this.renderRoot.querySelector<HTMLElement>("#start"))?.focus();
    }
  }

  close(): void {
    this.renderRoot.querySelector<HTMLElement>("#menu")!.hidePopover();
  }

  #toggled(event: ToggleEvent): void {
    this.shown = event.newState === "open";
    const lost = this.shadowRoot!.activeElement?.closest("#menu") || document.activeElement === document.body;
    if (!this.shown && lost) this.renderRoot.querySelector<HTMLElement>(".opener")!.focus();
  }

  #ask(name: string, detail: unknown): void {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }

  #start(event: Event): void {
    event.preventDefault();
    const field = this.renderRoot.querySelector<HTMLInputElement>("#packages")!;
    this.#ask("new-session", field.value.split(/[\s,]+/).filter(Boolean));
  }

  override render() {
    return html`
      <button class="opener" popovertarget="menu" aria-expanded=${this.shown ? "true" : "false"} aria-label=${`Sessions: ${shortName(this.current)}`}>
        <span>${shortName(this.current)}</span>${icon("chevron")}
      </button>
      <div id="menu" popover role="dialog" aria-label="Sessions" @toggle=${this.#toggled}>
        <h2>Sessions</h2>
        ${this.sessions.length
          ? html`<ul>${this.sessions.map((session) => this.#row(session))}</ul>`
          : html`<p class="muted small">None is open. A session keeps variables and files between runs; one starts with the first run.</p>`}
        <form @submit=${this.#start}>
          <label for="packages">Packages for a new one <span class="small muted">None are needed. For example: polars seaborn</span></label>
          <input id="packages" name="packages" autocomplete="off" autocapitalize="off" spellcheck="false" />
          <button id="start" class="primary" ?disabled=${this.busy}>${icon("plus")}${this.busy ? "Starting…" : "Start a new session"}</button>
        </form>
        ${this.problem ? html`<div class="notice" role="alert"><strong>${this.problem.title}</strong>${this.problem.advice}</div>` : nothing}
      </div>
    `;
  }

  #row(session: Session) {
    const id = session.session_id;
    const current = id === this.current;
    const packages = session.requirements?.join(", ");
    const until = moment(session.expires_at);
    return html`<li>
      <button class="quiet choose" aria-current=${current ? "true" : nothing} @click=${() => this.#ask("choose-session", id)}
        title=${until ? `Ends ${until.toLocaleTimeString()} if nothing runs` : ""}>
        ${shortName(id)}
        <span class="small muted">${[this.running.has(id) ? "running" : session.created_at ? `since ${when(session.created_at)}` : "", packages].filter(Boolean).join(" · ")}</span>
      </button>
      <button class="quiet small" aria-label=${`End ${shortName(id)}`} @click=${() => this.#ask("end-session", id)}>End</button>
    </li>`;
  }
}
customElements.define("fume-sessions", FumeSessions);
