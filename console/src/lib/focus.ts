/** Moves among the inferences of a page by keys. */

const LINKS = '.results a[href*="sel="]';

/** Gives the focus to the next inference, or to the one before. */
export function moveFocus(step: 1 | -1): void {
  const links = [...document.querySelectorAll<HTMLElement>(LINKS)];
  const at = links.findIndex((link) => link === document.activeElement);
  const next = at < 0 ? (step > 0 ? links[0] : links.at(-1)) : links[at + step];
  next?.focus();
}

/** The uid of the inference that has the focus or the pointer; `isPointing`: the pointer moved last. */
export function findCurrent(isPointing: boolean): string | null {
  const focused = document.activeElement?.closest<HTMLElement>("[data-uid]");
  const hovered = document.querySelector<HTMLElement>("[data-uid]:hover");
  const current = isPointing ? (hovered ?? focused) : (focused ?? hovered);
  return current?.dataset.uid ?? null;
}
