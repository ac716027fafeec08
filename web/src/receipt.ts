/** The receipt of a run: a small picture of its axes, and the whole of it in words. */

import { LitElement, css, html, nothing, svg } from "lit";
import { Axis, Receipt } from "./api.js";
import { icon } from "./icons.js";
import { base } from "./styles.js";

const AXES: [name: string, meaning: string][] = [
  ["files", "Files"],
  ["network", "Network"],
  ["processes", "Processes"],
  ["ipc", "Shared memory, sockets"],
  ["syscalls", "System calls"],
  ["privileges", "Privileges"],
  ["memory", "Memory"],
  ["cpu", "Time on the CPU"],
  ["disk", "Disk"],
];
const MEANING: Record<string, string> = {
  sealed: "Kept apart from the machine by the kernel.",
  confined: "Held back by weaker means: accidents are stopped, attacks may not be.",
  process: "An ordinary process with limits.",
  none: "Not isolated.",
};

function axesOf(receipt: Receipt): [name: string, meaning: string, axis: Axis][] {
  const known = AXES.map(([name]) => name);
  const others = Object.keys(receipt).filter((name) => typeof receipt[name] === "object" && !known.includes(name));
  return [...AXES, ...others.map((name): [string, string] => [name, name])].flatMap(([name, meaning]) => {
    const axis = receipt[name];
    return axis && typeof axis === "object" && "level" in axis ? [[name, meaning, axis] as [string, string, Axis]] : [];
  });
}

/** One column for each axis: full for sealed, half for confined, an outline for none. Form tells, colour only helps. */
export function picture(receipt: Receipt) {
  const axes = axesOf(receipt);
  const counts = new Map<string, number>();
  for (const [, , axis] of axes) counts.set(axis.level, (counts.get(axis.level) ?? 0) + 1);
  const label = [...counts].map(([level, count]) => `${count} of ${axes.length} axes ${level}`).join(", ");
  return html`<svg class="axes" viewBox="0 0 ${axes.length * 6 - 2} 14" role="img" aria-label=${label}>
    ${axes.map(([, , axis], at) => {
      if (axis.level === "sealed") return svg`<rect class="sealed" x=${at * 6} y="0" width="4" height="14" rx="1"/>`;
      if (axis.level === "confined")
        return svg`<rect class="edge" x=${at * 6 + 0.5} y="0.5" width="3" height="13" rx="1"/><rect class="confined" x=${at * 6} y="7" width="4" height="7" rx="1"/>`;
      return svg`<rect class="edge" x=${at * 6 + 0.5} y="0.5" width="3" height="13" rx="1"/>`;
    })}
  </svg>`;
}

export const pictureStyle = css`
  svg.axes { height: 0.95em; width: auto; flex: none; display: block; }
  svg.axes .sealed { fill: var(--good); }
  svg.axes .confined { fill: var(--warn); }
  svg.axes .edge { fill: none; stroke: var(--control); stroke-width: 1; }
`;

const SIGNS: Record<string, string> = { sealed: "●", confined: "◐", process: "○", none: "○" };

export class FumeReceipt extends LitElement {
  static override properties = { receipt: { attribute: false }, note: {} };
  declare receipt: Receipt | null;
  declare note: string;
  static override styles = [
    base,
    pictureStyle,
    css`
      .level { display: flex; align-items: center; gap: 0.9rem; padding: 0.8rem 1rem; background: var(--sunken); border-radius: 10px; margin-bottom: 0.75rem; }
      .level svg.axes { height: 2.1rem; }
      .level strong { font-size: 1.05rem; }
      li { display: grid; grid-template-columns: 9.5rem 6.2rem minmax(0, 1fr); gap: 0.15rem 0.8rem; padding: 0.45rem 0; border-top: 1px solid var(--line); }
      li:first-child { border-top: 0; }
      .sealed { color: var(--good); }
      .confined, .process, .none { color: var(--warn); }
      .fix { grid-column: 2 / -1; }
      @media (max-width: 699px) {
        li { grid-template-columns: minmax(0, 1fr) auto; }
        li > :nth-child(3), .fix { grid-column: 1 / -1; }
      }
    `,
  ];

  override render() {
    const receipt = this.receipt;
    if (!receipt) return html`<p class="muted">There is no receipt.</p>`;
    return html`
      <div class="level">
        ${picture(receipt)}
        <div><strong>${receipt.level}</strong><div class="small muted">${MEANING[receipt.level] ?? nothing}</div></div>
      </div>
      <ul>
        ${axesOf(receipt).map(
          ([, meaning, axis]) => html`<li>
            <span>${meaning}</span>
            <span class=${axis.level}>${SIGNS[axis.level] ?? "○"} ${axis.level}</span>
            <span class="small muted">${axis.mechanism}</span>
            ${axis.fix || axis.errno
              ? html`<span class="fix small">${[axis.step && `step ${axis.step}`, axis.errno, axis.fix].filter(Boolean).join(": ")}</span>`
              : nothing}
          </li>`,
        )}
      </ul>
    `;
  }
}
customElements.define("fume-receipt", FumeReceipt);

/** The receipt in a dialog of its own. */
export class FumeReceiptDialog extends LitElement {
  static override properties = { receipt: { attribute: false }, heading: {} };
  declare receipt: Receipt | null;
  declare heading: string;
  static override styles = [base];

  async show(receipt: Receipt, heading: string): Promise<void> {
    this.receipt = receipt;
    this.heading = heading;
    await this.updateComplete;
    this.renderRoot.querySelector("dialog")!.showModal();
  }

  override render() {
    return html`<dialog aria-labelledby="title" @click=${closeOutside}>
      <div>
        <header>
          <h2 id="title">${this.heading}</h2>
          <form method="dialog"><button class="quiet" aria-label="Close">${icon("close")}</button></form>
        </header>
        <fume-receipt .receipt=${this.receipt}></fume-receipt>
      </div>
    </dialog>`;
  }
}
customElements.define("fume-receipt-dialog", FumeReceiptDialog);

/** A click beside a dialog closes it: only there is the dialog itself the target. */
export function closeOutside(event: MouseEvent): void {
  if (event.target === event.currentTarget) (event.currentTarget as HTMLDialogElement).close();
}
