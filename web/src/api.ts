/** Talks to the server. What it refuses is `Refused`, with the server's own words; no answer at all is `Gone`. */

export interface Problem {
  title: string;
  status: number;
  detail: string;
  code: string;
  request_id?: string;
}

export class Refused extends Error {
  constructor(
    readonly problem: Problem,
    readonly retryAfter: number | null = null,
  ) {
    super(problem.detail);
  }
}

export class Gone extends Error {}

export interface Axis {
  level: "sealed" | "confined" | "process" | "none";
  mechanism: string;
  step?: string;
  errno?: string;
  fix?: string;
}

/** `level`, and one entry for each axis. */
export type Receipt = { level: string } & Record<string, Axis | string>;

export interface Session {
  session_id: string;
  state?: string;
  created_at?: string | number;
  expires_at?: string | number | null;
  requirements?: string[];
  receipt?: Receipt | null;
}

export interface FileEntry {
  path: string;
  size: number;
  mime?: string;
  content_base64?: string;
}

/** A file that is there and cannot be had, and why; the last may say how many more. */
export interface LeftOut {
  path: string;
  why: string;
}

export type Bundle = Record<string, unknown>;

export interface Result {
  execution_id?: string;
  stdout: string;
  stderr: string;
  exit_code: number;
  duration: number;
  meta: Record<string, unknown>;
  results?: Bundle[];
  files?: FileEntry[];
}

export type Event =
  | { type: "started"; execution_id: string }
  | { type: "output"; stream: "stdout" | "stderr"; text?: string; base64?: string }
  | { type: "display"; data: Bundle }
  | ({ type: "file" } & FileEntry)
  | ({ type: "result" } & Result)
  | { type: "error"; error: Problem }
  | { type: "other" };

export interface HistoryRow {
  execution_id: string;
  time: string | number;
  kind?: string;
  title?: string;
  language?: string | null;
  exit_code: number;
  reason: string;
  duration: number;
  level?: string | null;
  session_id?: string | null;
}

export interface Info {
  version: string;
  backend?: string;
  level?: string;
  receipt?: Receipt | null;
  [more: string]: unknown;
}

interface Asked {
  json?: unknown;
  body?: BodyInit;
  accept?: string;
  signal?: AbortSignal;
}

const TOKEN = "fumehood.token";

export class Client {
  onRefusedToken: () => void = () => {};
  onGone: () => void = () => {};
  onAnswer: () => void = () => {};

  get token(): string | null {
    return sessionStorage.getItem(TOKEN);
  }

  set token(value: string | null) {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
  }

  async request(method: string, path: string, asked: Asked = {}): Promise<Response> {
    const headers: Record<string, string> = { "X-Fumehood-Protocol": "1", Accept: asked.accept ?? "application/json" };
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    let body = asked.body;
    if (asked.json !== undefined) {
      headers["Content-Type"] = "application/json";
      body = JSON.stringify(asked.json);
    } else if (body !== undefined) {
      headers["Content-Type"] = "application/octet-stream";
    }
    let response: Response;
    try {
      // Relative to the page, so that it may live behind a prefix.
      response = await fetch(new URL(path, document.baseURI), {
        method,
        headers,
        body,
        signal: asked.signal,
        credentials: "omit",
        cache: "no-store",
        redirect: "error",
      });
    } catch (error) {
      if (asked.signal?.aborted) throw error;
      this.onGone();
      throw new Gone("The server does not answer.");
    }
    this.onAnswer();
    if (response.ok) return response;
    const problem = await readProblem(response);
    if (response.status === 401) this.onRefusedToken();
    const after = Number(response.headers.get("Retry-After"));
    throw new Refused(problem, after > 0 ? after : null);
  }

  async get<T>(path: string): Promise<T> {
    return (await (await this.request("GET", path)).json()) as T;
  }

  async post<T>(path: string, json: unknown): Promise<T> {
    const response = await this.request("POST", path, { json });
    const text = await response.text();
    return (text ? JSON.parse(text) : null) as T;
  }

  /** The events of an execution, as they come. */
  async *stream(path: string, json: unknown, signal: AbortSignal): AsyncGenerator<Event> {
    const response = await this.request("POST", path, { json, signal, accept: "application/x-ndjson" });
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      let piece: ReadableStreamReadResult<string>;
      try {
        piece = await reader.read();
      } catch (error) {
        if (signal.aborted) throw error;
        throw new Gone("The connection broke before the run ended.");
      }
      rest += piece.value ?? "";
      const lines = rest.split("\n");
      rest = lines.pop()!;
      if (piece.done && rest.trim()) lines.push(rest);
      for (const line of lines) if (line.trim()) yield JSON.parse(line) as Event;
      if (piece.done) return;
    }
  }
}

async function readProblem(response: Response): Promise<Problem> {
  const plain = { title: response.statusText || "Refused", status: response.status, detail: "", code: "" };
  try {
    return { ...plain, ...((await response.json()) as Problem) };
  } catch {
    return plain;
  }
}
