/** Light, dark, or what the system says. */

export type Theme = "system" | "light" | "dark";
const STORED = "fumehood.theme";
const ORDER: Theme[] = ["system", "light", "dark"];

export function theme(): Theme {
  const kept = localStorage.getItem(STORED) as Theme;
  return ORDER.includes(kept) ? kept : "system";
}

export function applyTheme(chosen: Theme): void {
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  localStorage.setItem(STORED, chosen);
}

/** The next one in turn; from the system's, first the one that it is not. */
export function nextTheme(chosen: Theme): Theme {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const order: Theme[] = dark ? ["system", "light", "dark"] : ["system", "dark", "light"];
  return order[(order.indexOf(chosen) + 1) % order.length]!;
}
