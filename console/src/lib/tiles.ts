/** Tiles of the grid: how wide they are, which are near the window, and which has the focus. */

export const SIZES = ["s", "", "l"];
const LEAST_PX: Record<string, number> = { s: 120, l: 330 };
const USUAL_PX = 210;
/** Of a narrow window: two tiles beside each other, or three small ones. */
const MOST_SHARE: Record<string, number> = { s: 0.3, l: 1 };
export const GAP_PX = 12;
/** About so many tiles leave the page together when they are far from the window. */
const IN_BLOCK = 60;

/** As wide as a tile of a size is at least. */
export function findWidth(size: string): number {
  return LEAST_PX[size] ?? USUAL_PX;
}

export function countColumns(size: string, width: number): number {
  const least = Math.min(findWidth(size), (MOST_SHARE[size] ?? 0.45) * width);
  return Math.max(1, Math.floor((width + GAP_PX) / (least + GAP_PX)));
}

/** The edge of the thumbnails; undefined: the usual one. */
export function findEdge(size: string): number | undefined {
  return size === "l" ? 512 : undefined;
}

/** How many tiles a block has: whole rows, so that no block but the last ends within one. */
export function countInBlock(columns: number): number {
  return columns * Math.ceil(IN_BLOCK / columns);
}

const NEAR = "700px";
const heard = new WeakMap<Element, (isNear: boolean) => void>();

const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      const isHidden = !isIntersecting && !boundingClientRect.width; // with its page, to which one returns
      if (!isHidden) heard.get(target)?.(isIntersecting);
    }
  },
  { root: document.getElementById("main"), rootMargin: NEAR }, // which scrolls: a margin of the window does not reach into it
);

/** Returns what ends it. */
export function whenNear(element: Element, hear: (isNear: boolean) => void): () => void {
  heard.set(element, hear);
  observer.observe(element);
  return () => {
    observer.unobserve(element);
    heard.delete(element);
  };
}

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
