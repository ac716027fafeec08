/** What is said when something goes wrong: what it is, and what to do. */

import { Gone, Problem, Refused } from "./api.js";
import type { Icon } from "./icons.js";

export interface Said {
  title: string;
  advice: string;
  code: string;
}

const BY_CODE: Record<string, [title: string, advice: string]> = {
  session_ended: ["This session has ended", "Its variables and files are gone. Run again to start a new one."],
  session_busy: ["This session is busy", "Something else runs in it, perhaps from another tab. Wait, or use another session."],
  package_not_allowed: ["A package is not allowed here", "Start the session without it, or ask whoever runs the server."],
  package_unavailable: ["A package could not be installed", "Check its name, or start the session without it."],
  isolation_unavailable: ["The isolation asked for is not available", "The command fumehood doctor, on the server's machine, says why."],
  misdirected: ["This session lives on another server", "Start a new session here."],
};

const BY_STATUS: Record<number, [title: string, advice: string]> = {
  401: ["The server refused the token", "Enter the one that it printed when it started."],
  403: ["The server does not allow this", "Its settings decide; whoever runs it can change them."],
  404: ["Not found", "It may have ended or been removed."],
  413: ["That is too large", "The server takes files of up to 50 MB."],
  422: ["The server cannot do that as asked", ""],
  429: ["Too many at once for this token", "Let something finish or end a session, then try again."],
  500: ["The server failed", "Its log has the details."],
  503: ["The server is busy or going down", "Try again in a moment. If it stays so, see its log."],
};

const OURS = new Set(["session_ended", "session_busy", "misdirected"]);

export function said(error: unknown): Said {
  if (error instanceof Refused) return saidOf(error.problem, error.retryAfter);
  if (error instanceof Gone)
    return { title: error.message, advice: "Is it still running? This page tries again by itself.", code: "gone" };
  return { title: "Something went wrong on this page", advice: String((error as Error)?.message ?? error), code: "page" };
}

export function saidOf(problem: Problem, retryAfter: number | null = null): Said {
  const [title, advice] = BY_CODE[problem.code] ?? BY_STATUS[problem.status] ?? [problem.title, ""];
  // The server's words name the cause; ours are for those who do not write requests themselves.
  const parts = [OURS.has(problem.code) || !problem.detail ? advice : sentence(problem.detail)];
  if (retryAfter !== null) parts.push(`The server asks to wait ${seconds(retryAfter)}.`);
  return { title, advice: parts.filter(Boolean).join(" "), code: problem.code };
}

function sentence(text: string): string {
  const trimmed = text.trim();
  if (!trimmed) return "";
  const first = trimmed[0]!.toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

const OUTCOMES: Record<string, string> = {
  ok: "Done",
  error: "Failed",
  timeout: "Out of time",
  signal: "Killed",
  memory: "Out of memory",
  processes: "Too many processes",
  disk: "Disk full",
  output: "Too much output",
  blocked_import: "Blocked import",
  cancelled: "Stopped",
};

export function outcome(reason: string, exitCode: number): string {
  return OUTCOMES[reason] ?? (exitCode === 0 ? "Done" : "Failed");
}

/** How an outcome looks: its class and its sign. */
export function look(reason: string, exitCode: number): ["good" | "bad" | "halted", Icon] {
  if (reason === "cancelled") return ["halted", "halt"];
  if (reason === "timeout") return ["halted", "clock"];
  return exitCode === 0 ? ["good", "good"] : ["bad", "bad"];
}

export function seconds(value: number): string {
  if (value >= 90) {
    const rest = Math.round(value % 60);
    return `${Math.floor(value / 60)} min${rest ? ` ${rest} s` : ""}`;
  }
  if (value >= 10) return `${value.toFixed(0)} s`;
  if (value >= 1) return `${value.toFixed(1)} s`;
  return `${Math.max(1, Math.round(value * 1000))} ms`;
}

export function bytes(size: number): string {
  if (size < 1000) return `${size} B`;
  if (size < 1e6) return `${(size / 1e3).toFixed(size < 1e4 ? 1 : 0)} kB`;
  return `${(size / 1e6).toFixed(size < 1e7 ? 1 : 0)} MB`;
}

/** A time as the server writes it: ISO text, or seconds since 1970. */
export function moment(value: string | number | null | undefined): Date | null {
  if (value === null || value === undefined || value === "") return null;
  const date = new Date(typeof value === "number" ? value * 1000 : value);
  return Number.isNaN(date.getTime()) ? null : date;
}

export function when(value: string | number | null | undefined): string {
  const date = moment(value);
  if (!date) return "";
  const today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return today ? time : `${date.toLocaleDateString([], { month: "short", day: "numeric" })}, ${time}`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}

/** A file's name as it is: what would not be seen, or would turn the rest around, is spelled out. */
export function visible(name: string): string {
  return name.replace(/[\p{Cc}\p{Zl}\p{Zp}\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]/gu, (character) => `\\u{${character.codePointAt(0)!.toString(16)}}`);
}
