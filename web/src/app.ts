/** The page: header, editor, and what came out. Holds the state; its parts show it and ask for changes by events. */

import { LitElement, PropertyValues, css, html, nothing } from "lit";
import { repeat } from "lit/directives/repeat.js";
import { Client, FileEntry, Gone, Info, LeftOut, Receipt, Refused, Session } from "./api.js";
import type { FumeEditor } from "./editor.js";
import "./editor.js";
import { EXAMPLES, FIRST } from "./examples.js";
import "./files.js";
import { tokenIn } from "./gate.js";
import type { FumeHelp } from "./help.js";
import { MOD, singleKeys } from "./help.js";
import type { FumeHistory } from "./history.js";
import "./history.js";
import { icon } from "./icons.js";
import type { FumeReceiptDialog } from "./receipt.js";
import { picture, pictureStyle } from "./receipt.js";
import { Run, fromBase64 } from "./run.js";
import "./run-view.js";
import type { FumeSessions } from "./sessions.js";
import { shortName } from "./sessions.js";
import { Theme, applyTheme, nextTheme, theme } from "./theme.js";
import { base } from "./styles.js";
import { Said, outcome, plural, said } from "./words.js";

type Tab = "output" | "files" | "history";
const TABS: [Tab, string][] = [["output", "Output"], ["files", "Files"], ["history", "History"]];
const DRAFT = "fumehood.draft";
const CURRENT = "fumehood.session";
const LIMITS = [10, 60, 300, 1800, 3600];
const STOP_PATIENCE_MS = 5_000;
const RETRY_MS = 2_000;
const NONE = "";

export class FumeApp extends LitElement {
  static override properties = Object.fromEntries(
    ["signedIn", "refused", "asking", "info", "sessions", "current", "runs", "opened", "files", "leftOut", "tab", "gone", "banner",
     "status", "starting", "sessionProblem", "uploading", "dragging", "themeName"].map((name) => [name, { state: true }]),
  );
  declare signedIn: boolean;
  declare refused: boolean;
  declare asking: boolean;
  declare info: Info | null;
  declare sessions: Session[];
  declare current: string | null;
  declare runs: Map<string, Run[]>;
  declare opened: Map<Run, boolean>;
  declare files: FileEntry[];
  declare leftOut: LeftOut[];
  declare tab: Tab;
  declare gone: boolean;
  declare banner: Said | null;
  declare status: string;
  declare starting: boolean;
  declare sessionProblem: Said | null;
  declare uploading: string;
  declare dragging: boolean;
  declare themeName: Theme;

  readonly client = new Client();
  #timeout = "";
  #listed = 0;
  #retry: number | null = null;

  static override styles = [
    base,
    pictureStyle,
    css`
      :host { height: 100dvh; display: flex; flex-direction: column; }
      header.top { display: flex; align-items: center; gap: 0.5rem; padding: 0.45rem 0.75rem; background: var(--surface); border-bottom: 1px solid var(--line); }
      h1 { font-size: 1.05rem; font-weight: 650; letter-spacing: -0.01em; display: flex; align-items: center; gap: 0.5rem; margin-right: 0.5rem; }
      h1 img { width: 1.6rem; height: 1.6rem; }
      .space { flex: 1; }
      .level { font-size: 0.867rem; }
      main { flex: 1; min-height: 0; display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 0.75rem; padding: 0.75rem; }
      .card { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; min-height: 0; display: flex; flex-direction: column; }
      .toolbar { display: flex; align-items: center; gap: 0.5rem; padding: 0.5rem; border-bottom: 1px solid var(--line); flex-wrap: wrap; }
      .toolbar .status { flex: 1; min-width: 4rem; text-align: right; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; padding-right: 0.3rem; }
      .limit { display: flex; color: var(--muted); margin-left: 0.35rem; }
      fume-editor { flex: 1; min-height: 0; }
      .side { display: flex; flex-direction: column; min-height: 0; }
      [role="tablist"] { display: flex; gap: 0.25rem; border-bottom: 1px solid var(--line); padding: 0 0.25rem; }
      [role="tab"] { background: none; border: 0; border-bottom: 3px solid transparent; border-radius: 6px 6px 0 0; color: var(--muted); padding: 0.45rem 0.8rem; min-height: 2.6rem; }
      [role="tab"][aria-selected="true"] { color: var(--text); border-bottom-color: var(--accent); font-weight: 600; }
      [role="tabpanel"] { flex: 1; min-height: 0; overflow: auto; padding: 0.75rem 0.25rem 0.25rem; border-radius: 6px; }
      .runs { display: grid; grid-template-columns: minmax(0, 1fr); gap: 0.6rem; }
      .empty { padding: 1.5rem 1rem; display: grid; gap: 0.9rem; justify-items: start; max-width: 34rem; }
      .empty h2 { font-size: 1.15rem; }
      .examples { display: flex; flex-wrap: wrap; gap: 0.5rem; }
      .banner { display: flex; flex-wrap: wrap; align-items: center; gap: 0.3rem 1rem; padding: 0.6rem 1rem; background: var(--warn-soft); border-bottom: 1px solid var(--line); }
      .banner p { flex: 1 1 16rem; }
      .wait { margin: auto; }
      .drop { position: fixed; inset: 0.75rem; z-index: 10; border: 3px dashed var(--accent); border-radius: 16px; background: color-mix(in srgb, var(--page) 88%, transparent); display: grid; place-items: center; font-size: 1.2rem; pointer-events: none; }
      @media (max-width: 899px) {
        :host { height: auto; min-height: 100dvh; }
        main { grid-template-columns: minmax(0, 1fr); align-content: start; }
        .card { height: min(44dvh, 24rem); min-height: 15rem; }
        .side { min-height: 18rem; }
        [role="tabpanel"] { overflow: visible; padding: 0.75rem 0 0; }
      }
      @media (max-width: 699px) {
        main { padding: 0.5rem; gap: 0.5rem; }
        header.top { padding: 0.4rem 0.5rem; gap: 0.25rem; }
        h1 { margin-right: 0.15rem; }
        h1 span, .level .word, .run kbd, .stop kbd { display: none; }
        header.top button { padding-inline: 0.5rem; }
        .toolbar { flex-wrap: nowrap; }
        .toolbar select { padding-inline: 0.4rem; }
        .toolbar .status { min-width: 0; }
      }
    `,
  ];

  constructor() {
    super();
    Object.assign(this, {
      signedIn: false, refused: false, asking: false, info: null, sessions: [], current: null, runs: new Map(), opened: new Map(),
      files: [], leftOut: [], tab: "output", gone: false, banner: null, status: "", starting: false, sessionProblem: null, uploading: "",
      dragging: false, themeName: theme(),
    });
    applyTheme(this.themeName);
    this.client.onRefusedToken = () => {
      this.client.token = null;
      this.refused = true;
      this.signedIn = false;
    };
    this.client.onGone = () => this.#lost();
    this.client.onAnswer = () => (this.gone = false);
  }

  override connectedCallback(): void {
    super.connectedCallback();
    addEventListener("keydown", this.#key);
    addEventListener("hashchange", this.#address);
    for (const name of ["dragenter", "dragover", "dragleave", "drop"] as const) addEventListener(name, this.#drag);
    this.#address();
  }

  /** Takes the token out of the address, where it would be seen and kept. */
  #address = (): void => {
    const found = /[#&]token=([^&]+)/.exec(location.hash);
    if (found) {
      this.client.token = tokenIn(decodeURIComponent(found[0]));
      history.replaceState(null, "", location.pathname + location.search);
    }
    if (this.client.token && (found || !this.signedIn)) void this.#enter();
  };

  async #enter(): Promise<void> {
    this.asking = true;
    try {
      this.info = await this.client.get<Info>("info");
      this.refused = false;
      this.signedIn = true;
      await this.#listSessions();
      const kept = sessionStorage.getItem(CURRENT);
      const found = this.sessions.find(({ session_id: id }) => id === kept) ?? null;
      this.#choose(found?.session_id ?? null);
    } catch (error) {
      if (!(error instanceof Refused && error.problem.status === 401)) {
        this.signedIn = true;
        this.#say(error);
      }
    }
    this.asking = false;
  }

  #lost(): void {
    this.gone = true;
    this.#retry ??= window.setInterval(async () => {
      if (this.gone && this.client.token) await this.client.get<Info>("info").then((info) => (this.info = info), () => {});
      if (this.gone) return;
      clearInterval(this.#retry!);
      this.#retry = null;
      this.banner = null;
      this.status = "Connected again";
      void this.#listSessions().catch(() => {});
    }, RETRY_MS);
  }

  #say(error: unknown): void {
    if (error instanceof Gone) return; // said by the banner while it lasts
    if (error instanceof Refused && error.problem.status === 401) return; // the gate says it
    this.banner = said(error);
  }

  // Sessions

  async #listSessions(): Promise<void> {
    const answer = await this.client.get<{ sessions: Session[] }>("sessions");
    this.sessions = answer.sessions;
    if (this.current && !this.sessions.some(({ session_id: id }) => id === this.current)) this.#over(this.current);
  }

  async #startSession(requirements: string[] = []): Promise<string> {
    this.starting = true;
    try {
      const made = await this.client.post<Session>("sessions", requirements.length ? { requirements } : {});
      this.sessions = [...this.sessions, made];
      return made.session_id;
    } finally {
      this.starting = false;
    }
  }

  #choose(id: string | null): void {
    this.current = id;
    if (id) sessionStorage.setItem(CURRENT, id);
    else sessionStorage.removeItem(CURRENT);
    Object.assign(this, { files: [], leftOut: [] });
    void this.#listFiles();
  }

  async #newSession(requirements: string[]): Promise<void> {
    this.sessionProblem = null;
    try {
      this.#choose(await this.#startSession(requirements));
      this.#part<FumeSessions>("fume-sessions").close();
      this.status = `${shortName(this.current)} started`;
      this.#part<FumeEditor>("fume-editor").focus();
    } catch (error) {
      this.sessionProblem = said(error);
    }
  }

  async #endSession(id: string): Promise<void> {
    try {
      await this.client.request("DELETE", `sessions/${id}`);
    } catch (error) {
      if (!(error instanceof Refused && [404, 410].includes(error.problem.status))) return this.#say(error);
    }
    this.#forget(id);
    this.status = `${shortName(id)} ended`;
  }

  #forget(id: string): void {
    this.sessions = this.sessions.filter((session) => session.session_id !== id);
    if (this.current === id) this.#choose(null);
  }

  /** It has ended by itself: what ran there stays in view, without a session, and the next run starts one. */
  #over(id: string): void {
    if (this.current === id) this.#keep(NONE, this.runs.get(id) ?? []);
    this.#forget(id);
  }

  /** A session was started for what has none. */
  #adopt(id: string): void {
    this.#keep(id, this.runs.get(NONE) ?? []);
    this.#keep(NONE, []);
    this.#choose(id);
  }

  // Runs

  get #shown(): Run[] {
    return this.runs.get(this.current ?? NONE) ?? [];
  }

  get #running(): Run | null {
    return this.#shown.find((run) => run.running) ?? null;
  }

  #keep(session: string, runs: Run[]): void {
    this.runs = new Map(this.runs).set(session, runs);
  }

  async #run(): Promise<void> {
    const code = this.#part<FumeEditor>("fume-editor").value;
    if (this.#running) return void (this.status = "Something runs already: stop it first");
    if (!code.trim()) return void (this.status = "There is nothing to run");
    const run = new Run(code);
    this.tab = "output";
    this.status = "Running";
    this.banner = null;
    for (const earlier of this.#shown) this.opened.delete(earlier);
    this.#keep(this.current ?? NONE, [run, ...this.#shown]);
    run.addEventListener("change", () => void (run.running || this.requestUpdate()));
    try {
      if (!this.current) this.#adopt(await this.#startSession());
      run.sessionId = this.current;
      if (run.abort.signal.aborted) throw new DOMException("Stopped", "AbortError");
      const asked = this.#timeout ? { code, timeout: Number(this.#timeout) } : { code };
      for await (const event of this.client.stream(`sessions/${run.sessionId}/run`, asked, run.abort.signal)) run.take(event);
      if (run.running) throw new Gone("The connection broke before the run ended.");
    } catch (error) {
      this.#failed(run, error);
    }
    this.status = run.result ? `${outcome(String(run.result.meta.reason), run.result.exit_code)}` : (run.problem?.title ?? "");
    if (run.sessionId === this.current) void this.#listFiles();
  }

  #failed(run: Run, error: unknown): void {
    if (run.abort.signal.aborted) run.fail({ title: "Stopped", advice: "The connection was closed, and the server ends what ran.", code: "stopped" });
    else run.fail(said(error));
    const over = error instanceof Refused && (error.problem.status === 410 || error.problem.status === 404 || error.problem.status === 421);
    if (over && run.sessionId) this.#over(run.sessionId);
  }

  /** Whether there was something to stop. */
  #stop(): boolean {
    const run = this.#running;
    if (!run) return false;
    if (run.stopping) return true;
    run.stopping = true;
    run.changed();
    this.status = "Stopping";
    this.requestUpdate();
    if (!run.sessionId) run.abort.abort();
    else this.client.request("POST", `sessions/${run.sessionId}/cancel`).catch(() => run.abort.abort());
    setTimeout(() => run.running && run.abort.abort(), STOP_PATIENCE_MS);
    return true;
  }

  // Files

  async #listFiles(): Promise<void> {
    const session = this.current;
    const asked = ++this.#listed;
    if (!session) return;
    try {
      const { files, left_out: leftOut = [] } = await this.client.get<{ files: FileEntry[]; left_out?: LeftOut[] }>(`sessions/${session}/files`);
      if (asked === this.#listed) Object.assign(this, { files, leftOut }); // an answer may come after that to a later question
    } catch (error) {
      if (!(error instanceof Refused && [404, 410].includes(error.problem.status))) return;
      if (this.current === session && !this.#running) this.#say(error); // else what runs says it
      this.#over(session);
    }
  }

  async #upload(files: File[]): Promise<void> {
    this.tab = "files";
    try {
      if (!this.current) this.#adopt(await this.#startSession());
      for (const file of files) {
        this.uploading = `Sending ${file.name}…`;
        await this.client.request("PUT", `sessions/${this.current}/files/content?path=${encodeURIComponent(`/workspace/${file.name}`)}`, { body: file });
      }
      this.status = files.length === 1 ? `${files[0]!.name} is in the session` : `${plural(files.length, "file")} are in the session`;
    } catch (error) {
      this.#say(error);
    }
    this.uploading = "";
    await this.#listFiles();
  }

  async #download(file: FileEntry, session: string | null): Promise<void> {
    const name = file.path.split("/").at(-1)!;
    try {
      const data = file.content_base64 !== undefined
        ? new Blob([fromBase64(file.content_base64)])
        : await (await this.client.request("GET", `sessions/${session}/files/content?path=${encodeURIComponent(file.path)}`, { accept: "*/*" })).blob();
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(data), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    } catch (error) {
      this.#say(error);
    }
  }

  #drag = (event: DragEvent): void => {
    if (!this.signedIn || !event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    this.dragging = event.type === "dragenter" || event.type === "dragover" || (event.type === "dragleave" && event.relatedTarget !== null);
    if (event.type === "drop" && event.dataTransfer.files.length) void this.#upload([...event.dataTransfer.files]);
  };

  // Keys

  #key = (event: KeyboardEvent): void => {
    if (!this.signedIn || event.defaultPrevented) return;
    const target = event.composedPath()[0] as HTMLElement;
    const dialog = event.composedPath().some((node) => node instanceof HTMLElement && (node.localName === "dialog" || node.matches(":popover-open")));
    if (dialog) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void this.#run();
    } else if ((event.key === "Escape" || (event.key === "." && event.ctrlKey)) && this.#stop()) {
      event.preventDefault();
    } else if (event.key === "F1") {
      event.preventDefault();
      this.#part<FumeHelp>("fume-help").show();
    } else if (!event.ctrlKey && !event.metaKey && !event.altKey && singleKeys() && !types(target)) {
      const act = this.#single[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    }
  };

  #single: Record<string, () => void> = {
    e: () => this.#part<FumeEditor>("fume-editor").focus(),
    o: () => this.#show("output"),
    f: () => this.#show("files"),
    h: () => this.#show("history"),
    s: () => void this.#part<FumeSessions>("fume-sessions").open(),
    t: () => this.#turnTheme(),
    "?": () => this.#part<FumeHelp>("fume-help").show(),
  };

  #show(tab: Tab): void {
    this.tab = tab;
    void this.updateComplete.then(() => this.renderRoot.querySelector<HTMLElement>(`#tab-${tab}`)?.focus());
  }

  #tabKey(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = TABS.findIndex(([name]) => name === this.tab);
    this.#show(TABS[(at + step + TABS.length) % TABS.length]![0]);
  }

  #turnTheme(): void {
    this.themeName = nextTheme(this.themeName);
    applyTheme(this.themeName);
    this.status = `Theme: ${this.themeName}`;
  }

  #part<T extends HTMLElement>(name: string): T {
    return this.renderRoot.querySelector<T>(name)!;
  }

  override updated(changed: PropertyValues<this>): void {
    if (changed.has("signedIn") && this.signedIn) {
      const editor = this.#part<FumeEditor>("fume-editor");
      editor.onRun = () => void this.#run();
      editor.onStop = () => this.#stop();
      editor.onLeave = () => this.renderRoot.querySelector<HTMLElement>("#run")!.focus();
      void editor.updateComplete.then(() => {
        editor.value = sessionStorage.getItem(DRAFT) ?? FIRST;
        if (matchMedia("(hover: hover)").matches) editor.focus(); // a phone's keyboard would cover the page
      });
    }
    if (changed.has("tab") && this.tab === "history" && this.signedIn) void this.#part<FumeHistory>("fume-history").load();
  }

  // What is seen

  override render() {
    if (!this.signedIn && this.asking && !this.refused)
      return html`${this.#lostBanner()}<p class="wait muted" role="status">Asking the server…</p>`;
    if (!this.signedIn)
      return html`${this.#lostBanner()}<fume-gate ?refused=${this.refused} ?busy=${this.asking}
        @token=${(event: CustomEvent<string>) => { this.client.token = event.detail; void this.#enter(); }}></fume-gate>`;
    return html`
      ${this.#header()} ${this.#lostBanner()} ${this.#notice()}
      <main
        @show-receipt=${(event: CustomEvent<Receipt>) => this.#receipt(event.detail, "What was enforced in this run")}
        @use-code=${(event: CustomEvent<string>) => this.#useCode(event.detail)}
        @copy=${(event: CustomEvent<string>) => void navigator.clipboard?.writeText(event.detail).then(() => (this.status = "Copied"))}
        @insert=${(event: CustomEvent<string>) => this.#part<FumeEditor>("fume-editor").insert(event.detail)}
        @download=${(event: CustomEvent<{ file: FileEntry; run?: Run }>) => void this.#download(event.detail.file, event.detail.run?.sessionId ?? this.current)}
        @upload=${(event: CustomEvent<File[]>) => void this.#upload(event.detail)}
        @with-package=${(event: CustomEvent<string>) => void this.#part<FumeSessions>("fume-sessions").open(event.detail)}
        @toggle-run=${(event: CustomEvent<Run>) => this.#toggle(event.detail)}
      >
        <section class="card" aria-label="Editor">
          ${this.#toolbar()}
          <fume-editor @edited=${() => sessionStorage.setItem(DRAFT, this.#part<FumeEditor>("fume-editor").value)}></fume-editor>
        </section>
        <section class="side" aria-label="What came out">
          <div role="tablist" aria-label="Views" @keydown=${this.#tabKey}>${TABS.map(([name, label]) => this.#tabButton(name, label))}</div>
          ${TABS.map(([name]) => html`<div role="tabpanel" id="panel-${name}" aria-labelledby="tab-${name}" ?hidden=${this.tab !== name}>
            ${name === "output" ? this.#output() : name === "files"
              ? html`<fume-files .files=${this.files} .leftOut=${this.leftOut} .busy=${this.uploading} ?hasSession=${this.current !== null}></fume-files>`
              : html`<fume-history .client=${this.client} .policy=${this.#policy()}></fume-history>`}
          </div>`)}
        </section>
      </main>
      ${this.dragging ? html`<div class="drop"><strong>Drop to put it into the session</strong></div>` : nothing}
      <fume-help .info=${this.info}></fume-help>
      <fume-receipt-dialog></fume-receipt-dialog>
    `;
  }

  #header() {
    const receipt = this.sessions.find(({ session_id: id }) => id === this.current)?.receipt ?? this.info?.receipt ?? null;
    const themes = { system: "system", light: "sun", dark: "moon" } as const;
    return html`<header class="top">
      <h1><img src="assets/icon.svg" alt="" /><span>fumehood</span></h1>
      <fume-sessions .sessions=${this.sessions} .current=${this.current} .running=${this.#busySessions()} .problem=${this.sessionProblem} ?busy=${this.starting}
        @choose-session=${(event: CustomEvent<string>) => { this.#choose(event.detail); this.#part<FumeSessions>("fume-sessions").close(); }}
        @new-session=${(event: CustomEvent<string[]>) => void this.#newSession(event.detail)}
        @end-session=${(event: CustomEvent<string>) => void this.#endSession(event.detail)}></fume-sessions>
      <span class="space"></span>
      ${receipt
        ? html`<button class="quiet level" @click=${() => this.#receipt(receipt, "What is enforced here")} title="What is enforced here" aria-label=${`Isolation: ${receipt.level}`}>
            ${picture(receipt)}<span class="word">${receipt.level}</span></button>`
        : nothing}
      <button class="quiet" @click=${this.#turnTheme} aria-label=${`Theme: ${this.themeName}. Change it`} title=${`Theme: ${this.themeName}`}>${icon(themes[this.themeName])}</button>
      <button class="quiet" @click=${() => this.#part<FumeHelp>("fume-help").show()} aria-label="Keys and help" title="Keys and help (?)"><strong>?</strong></button>
    </header>`;
  }

  #toolbar() {
    const running = this.#running;
    return html`<div class="toolbar">
      <button id="run" class="primary run" ?disabled=${running !== null} @click=${this.#run} aria-keyshortcuts="Control+Enter">${icon("run")}Run <kbd aria-hidden="true">${MOD} ⏎</kbd></button>
      <button id="stop" class="stop" ?disabled=${running === null} @click=${this.#stop} aria-keyshortcuts="Escape">${icon("stop")}Stop <kbd aria-hidden="true">Esc</kbd></button>
      <label class="limit" for="limit" title="Time limit">${icon("clock")}<span class="visually-hidden">Time limit</span></label>
      <select id="limit" title="Time limit" @change=${(event: Event) => (this.#timeout = (event.currentTarget as HTMLSelectElement).value)}>
        ${this.#limits().map(([value, label]) => html`<option value=${value}>${label}</option>`)}
      </select>
      <span class="status small muted" role="status">${this.status}</span>
    </div>`;
  }

  /** Nothing asks for the server's own time limit. */
  #limits(): [value: string, label: string][] {
    const { timeout_s: usual, max_timeout_s: most } = (this.info?.limits ?? {}) as { timeout_s?: number; max_timeout_s?: number };
    const further = LIMITS.filter((value) => value !== usual && (most === undefined || value <= most));
    return [["", usual ? brief(usual) : "usual time"], ...further.map((value): [string, string] => [String(value), brief(value)])];
  }

  #tabButton(name: Tab, label: string) {
    const chosen = this.tab === name;
    const count = name === "files" && this.files.length ? html` <span class="small">${this.files.length}</span>` : nothing;
    return html`<button role="tab" id="tab-${name}" aria-controls="panel-${name}" aria-selected=${chosen ? "true" : "false"} tabindex=${chosen ? 0 : -1}
      @click=${() => (this.tab = name)}>${label}${count}</button>`;
  }

  #output() {
    const runs = this.#shown;
    if (!runs.length)
      return html`<div class="empty">
        <h2>Nothing has run yet</h2>
        <p>Write Python and press Run. Output appears here as it comes,
          with figures, tables and files. Drop a CSV anywhere to use it.</p>
        <div class="examples">${EXAMPLES.map(([name, code]) => html`<button @click=${() => this.#useCode(code)}>${name}</button>`)}</div>
      </div>`;
    return html`<div class="runs" role="log" aria-live="polite" aria-relevant="additions text" aria-label="Runs, the newest first">
      ${repeat(runs, (run) => run.key, (run, at) => html`<fume-run .run=${run} ?open=${this.opened.get(run) ?? at === 0}></fume-run>`)}
    </div>`;
  }

  #toggle(run: Run): void {
    const open = this.opened.get(run) ?? this.#shown[0] === run;
    this.opened = new Map(this.opened).set(run, !open);
  }

  #useCode(code: string): void {
    const editor = this.#part<FumeEditor>("fume-editor");
    editor.value = code;
    editor.focus();
    this.status = "The code is in the editor";
  }

  #receipt(receipt: Receipt, heading: string): void {
    void this.#part<FumeReceiptDialog>("fume-receipt-dialog").show(receipt, heading);
  }

  #busySessions(): Set<string> {
    return new Set([...this.runs].filter(([, runs]) => runs.some((run) => run.running)).map(([id]) => id));
  }

  #policy(): string {
    const kept = (this.info?.policy as Record<string, unknown> | undefined)?.store_code;
    if (kept === "on_error") return "This server keeps a record of what failed.";
    if (kept === "never") return "This server keeps no records.";
    return "What ran before, the newest first.";
  }

  #lostBanner() {
    if (!this.gone) return nothing;
    return html`<div class="banner" role="alert"><p><strong>The server does not answer.</strong> Is <code>fumehood serve</code> still running? This page tries again by itself; what you wrote stays.</p>
      <button class="small" @click=${() => void this.client.get("info").catch(() => {})}>Try now</button></div>`;
  }

  #notice() {
    if (!this.banner || this.gone) return nothing;
    return html`<div class="banner" role="alert"><p><strong>${this.banner.title}.</strong> ${this.banner.advice}</p>
      <button class="small" @click=${() => (this.banner = null)}>Close</button></div>`;
  }
}
customElements.define("fume-app", FumeApp);

function brief(value: number): string {
  return value % 60 ? `${value} s` : `${value / 60} min`;
}

function types(target: HTMLElement): boolean {
  return target.isContentEditable || ["input", "textarea", "select"].includes(target.localName);
}
