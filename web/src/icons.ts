/** Small drawings; each stands beside a word or in a control that has a label. */

import { svg, html } from "lit";

const shapes = {
  run: svg`<path d="M7 4.5v15l12-7.5z" fill="currentcolor"/>`,
  stop: svg`<rect x="6" y="6" width="12" height="12" rx="1.5" fill="currentcolor"/>`,
  good: svg`<path d="M5 12.5l4.5 4.5L19 7.5"/>`,
  bad: svg`<path d="M6 6l12 12M18 6L6 18"/>`,
  clock: svg`<circle cx="12" cy="12" r="8.5"/><path d="M12 7.5V12l3 2"/>`,
  halt: svg`<circle cx="12" cy="12" r="8.5"/><path d="M9 9h6v6H9z" fill="currentcolor"/>`,
  down: svg`<path d="M12 4v11M7 11l5 5 5-5M5 20h14"/>`,
  plus: svg`<path d="M12 5v14M5 12h14"/>`,
  chevron: svg`<path d="M7 10l5 5 5-5"/>`,
  close: svg`<path d="M6 6l12 12M18 6L6 18"/>`,
  file: svg`<path d="M7 3.5h7l4 4V20.5H7zM14 3.5v4h4"/>`,
  sun: svg`<circle cx="12" cy="12" r="4"/><path d="M12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4"/>`,
  moon: svg`<path d="M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z"/>`,
  system: svg`<circle cx="12" cy="12" r="8.5"/><path d="M12 3.5v17a8.5 8.5 0 0 0 0-17z" fill="currentcolor"/>`,
  copy: svg`<rect x="8.5" y="8.5" width="11" height="11" rx="2"/><path d="M15.5 8.5v-2a2 2 0 0 0-2-2h-7a2 2 0 0 0-2 2v7a2 2 0 0 0 2 2h2"/>`,
};

export type Icon = keyof typeof shapes;

export function icon(name: Icon) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true">${shapes[name]}</svg>`;
}
