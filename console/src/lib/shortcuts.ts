/** The keys of the console: the one table. `?` shows it, and every page acts by it. */

export interface Shortcut {
  key: string;
  where: "Everywhere" | "Find" | "One inference" | "Labelling";
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
  label: { key: "l", where: "One inference", words: "Begin or end labelling" },
  back: { key: "Escape", where: "One inference", words: "Back to the list" },
  right: { key: "r", where: "Labelling", words: "Right: what was predicted is true; then the next inference" },
  wrong: { key: "w", where: "Labelling", words: "Wrong: nothing is there, or choose another class" },
  nameClass: { key: "0 – 9", where: "Labelling", words: "The class of this number; of the box that is picked, or of the next one" },
  removeBox: { key: "Delete", where: "Labelling", words: "Remove the box that is picked" },
  undo: { key: "u", where: "Labelling", words: "Undo the last decision" },
} satisfies Record<string, Shortcut>;

type ShortcutName = keyof typeof SHORTCUTS;

const TYPING = "input:not([type=checkbox], [type=range]), textarea, select";

/** What a page does on its keys, as the listener of the window: not while one types, nor under a dialog. An action
 * that answers false leaves the key to others. */
export function onShortcut(actions: Partial<Record<ShortcutName, (key: string) => unknown>>) {
  return (event: KeyboardEvent): void => {
    const isTyping = event.target instanceof Element && event.target.matches(TYPING);
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return;
    const names = Object.keys(actions) as ShortcutName[];
    const keys = [event.key, /^\d$/.test(event.key) ? SHORTCUTS.nameClass.key : ""];
    const name = names.find((candidate) => keys.includes(SHORTCUTS[candidate].key));
    if (name && actions[name]?.(event.key) !== false) event.preventDefault();
  };
}
