/** What every part of the page shares: controls, focus, type. */

import { css } from "lit";

export const base = css`
  *, *::before, *::after { box-sizing: border-box; }
  [hidden] { display: none !important; }
  :host { display: block; min-width: 0; }
  h1, h2, h3, p, ul, ol, dl, dd, pre, figure { margin: 0; padding: 0; }
  ul, ol { list-style: none; }
  a { color: var(--accent); }
  code, pre, .mono { font-family: var(--mono); font-size: 0.867rem; }
  .muted { color: var(--muted); }
  .small { font-size: 0.867rem; }
  :focus { outline: none; }
  :focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; border-radius: 6px; }
  button, input, select {
    font: inherit; color: var(--text); background: var(--surface); border: 1px solid var(--line); border-radius: 8px;
    padding: 0.3rem 0.7rem; min-height: 2.2rem; max-width: 100%;
  }
  input, select { border-color: var(--control); }
  button { cursor: pointer; white-space: nowrap; display: inline-flex; align-items: center; justify-content: center; gap: 0.45rem; }
  button:hover { border-color: var(--control); }
  button[disabled] { opacity: 0.55; cursor: default; border-color: var(--line); }
  button.primary { background: var(--accent); border-color: var(--accent); color: var(--accent-text); font-weight: 600; }
  button.primary:hover:not([disabled]) { background: var(--accent-strong); border-color: var(--accent-strong); }
  button.quiet { background: none; border-color: transparent; }
  button.quiet:hover:not([disabled]) { background: var(--sunken); }
  button.link, button.link.small { background: none; border: 0; padding: 0; min-height: 1.7rem; white-space: normal; text-align: left; color: var(--accent); text-decoration: underline; text-underline-offset: 0.2em; }
  button.small { min-height: 1.9rem; padding: 0.15rem 0.55rem; }
  kbd {
    font: 0.8rem/1.4 var(--sans); padding: 0 0.35rem; border: 1px solid currentcolor; border-radius: 4px; opacity: 0.8;
  }
  svg.icon { width: 1.05em; height: 1.05em; flex: none; fill: none; stroke: currentcolor; stroke-width: 1.8; stroke-linecap: round; stroke-linejoin: round; }
  .visually-hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
  dialog {
    color: var(--text); background: var(--raised); border: 1px solid var(--line); border-radius: 14px; padding: 0;
    width: min(40rem, calc(100vw - 2rem)); max-height: min(46rem, calc(100dvh - 2rem)); box-shadow: 0 8px 40px var(--shade);
  }
  dialog::backdrop { background: rgb(10 16 14 / 45%); }
  dialog > div { padding: 1.25rem 1.4rem 1.4rem; }
  dialog header { display: flex; align-items: center; gap: 1rem; margin-bottom: 0.75rem; }
  dialog header h2 { font-size: 1.15rem; flex: 1; }
  .notice { border-radius: 8px; padding: 0.6rem 0.8rem; background: var(--bad-soft); color: var(--text); border-left: 4px solid var(--bad); }
  .notice strong { display: block; }
  @media (pointer: coarse) { button, input, select, button.small { min-height: 2.6rem; } }
  @media (max-width: 899px) { input, select { font-size: 16px; } }
  @media (prefers-reduced-motion: reduce) { *, *::before, *::after { animation: none !important; transition: none !important; } }
`;
