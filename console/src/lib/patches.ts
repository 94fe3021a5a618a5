/** Predictions as tiles of their own: those that the filter asks for, or all if it asks for none. */

import { findAsked, findSize, type Size, toShapes } from "./shapes.ts";
import { scores } from "./scores.svelte.ts";
import type { Inference, Prediction } from "./types.ts";

export interface Patch {
  inference: Inference;
  prediction: Prediction;
}

/** The part of a picture around a prediction: a square, in its pixels. */
interface Crop {
  left: number;
  top: number;
  edge: number;
}

const MARGIN = 1.3;
const SORT = /^-?prediction\.(\w+)$/;
const EDGES = [256, 512, 1024];
/** How wide a patch is about, in pixels of the screen. */
const SHOWN_PX = 180 * devicePixelRatio;

/**
 * The patches of a page's inferences in its order. Of a page that is sorted by the predictions they are in order too: those
 * that a following page may come before wait for it.
 */
export function listPatches(items: Inference[], sort: string, hasMore: boolean): Patch[] {
  const all = items.flatMap((inference) => {
    const asked = findAsked(inference);
    const predictions = (inference.predictions ?? []).filter((each) => asked?.has(each.ordinal) ?? true);
    return predictions.filter(isDrawn).map((prediction) => ({ inference, prediction }));
  });
  const of = SORT.exec(sort)?.[1] as keyof Prediction | undefined;
  const sorted = of ? sortPatches(all, of, sort.startsWith("-") ? -1 : 1, hasMore ? (items.at(-1)?.uid ?? "") : "") : all;
  return sorted.filter(({ prediction }) => scores.has(prediction));
}

function sortPatches(all: Patch[], of: keyof Prediction, sign: 1 | -1, last: string): Patch[] {
  const read = ({ prediction }: Patch) => sign * Number(prediction[of]);
  const ends = all.filter(({ inference }) => inference.uid === last).map(read);
  const end = last && ends.length ? Math.min(...ends) : Infinity;
  return all.filter((patch) => patch.prediction[of] !== null && read(patch) <= end).toSorted((a, b) => read(a) - read(b));
}

function isDrawn({ xmin, cx }: Prediction): boolean {
  return xmin !== null || cx !== null;
}

export function findCrop({ inference, prediction }: Patch, loaded: Size | null): { crop: Crop; size: Size } | null {
  const size = findSize(inference, loaded);
  const points = size && toShapes([prediction], size, null)[0]?.points;
  if (!points) return null;
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const edge = Math.max(right - left, bottom - top, 1) * MARGIN;
  return { crop: { left: (left + right - edge) / 2, top: (top + bottom - edge) / 2, edge }, size };
}

/** The edge of a thumbnail in which the crop is as fine as the screen, or as nearly as there is one. */
export function findPatchEdge(patch: Patch): number {
  const found = findCrop(patch, null);
  const wanted = found ? (SHOWN_PX / found.crop.edge) * Math.max(found.size.width, found.size.height) : 0;
  return EDGES.find((edge) => edge >= wanted) ?? 1024;
}
