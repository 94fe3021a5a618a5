/** Tiles of the grid: how wide they are, and of which blocks of rows the grid is made. */

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
