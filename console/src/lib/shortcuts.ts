/** The keys of the console: the one table. `?` shows it, and every page acts by it. */

export interface Shortcut {
  key: string;
  where: "Everywhere" | "Find" | "One inference";
  words: string;
}

export const SHORTCUTS = {
  help: { key: "?", where: "Everywhere", words: "Show the keyboard shortcuts" },
  find: { key: "/", where: "Find", words: "Go to the filter" },
  nextTile: { key: "j", where: "Find", words: "Go to the next inference" },
  previousTile: { key: "k", where: "Find", words: "Go to the previous inference" },
  pick: { key: "x", where: "Find", words: "Select or deselect the inference under the focus or pointer" },
  pickAll: { key: "a", where: "Find", words: "Select all inferences that are shown" },
  unpick: { key: "Escape", where: "Find", words: "Clear the selection" },
  next: { key: "j", where: "One inference", words: "The next inference within the filter" },
  previous: { key: "k", where: "One inference", words: "The previous inference within the filter" },
  pickThis: { key: "x", where: "One inference", words: "Select or deselect this inference" },
  enlarge: { key: "+", where: "One inference", words: "Enlarge the picture" },
  shrink: { key: "-", where: "One inference", words: "Shrink the picture" },
  fit: { key: "0", where: "One inference", words: "Fit the picture to the window" },
  back: { key: "Escape", where: "One inference", words: "Back to the list" },
} satisfies Record<string, Shortcut>;

type ShortcutName = keyof typeof SHORTCUTS;

const TYPING = "input:not([type=checkbox], [type=range]), textarea, select";

/** What a page does on its keys, as the listener of the window: not while one types, nor under a dialog. */
export function onShortcut(actions: Partial<Record<ShortcutName, () => void>>) {
  return (event: KeyboardEvent): void => {
    const isTyping = event.target instanceof Element && event.target.matches(TYPING);
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return;
    const names = Object.keys(actions) as ShortcutName[];
    const name = names.find((candidate) => SHORTCUTS[candidate].key === event.key);
    if (!name) return;
    event.preventDefault();
    actions[name]?.();
  };
}
