/** Light, dark, or as the system has it. */

const NAME = "inference-store-theme";
const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export function readTheme(): Theme {
  try {
    const stored = localStorage.getItem(NAME);
    return THEMES.find((theme) => theme === stored) ?? "system";
  } catch {
    return "system"; // storage is switched off
  }
}

export function applyTheme(theme: Theme = readTheme()): void {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(NAME, theme);
  } catch {
    // it holds until the page is left
  }
}

export function nextTheme(theme: Theme): Theme {
  return THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system";
}
