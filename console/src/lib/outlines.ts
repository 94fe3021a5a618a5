/**
 * Contours and keypoints of tiles. The API reads them from the stored responses, so a tile asks when it comes near the
 * window, and only a few ask at a time. Until they come, and if they do not, the tile shows boxes.
 */

import { untrack } from "svelte";
import { Problem } from "./api.ts";
import type { Preview } from "./preview.svelte.ts";
import { askDrawing } from "./questions.ts";
import { whenNear } from "./tiles.ts";

const MOST_AT_ONCE = 3;
const PAUSE_MS = 5000;
/** Those near the window that are not asked for yet, the first to come first. */
const near = new Set<Preview>();
const requests = new Map<Preview, AbortController>();

/** Asks for the outlines when the element comes near, unless they are there; returns what ends it. */
export function drawWhenNear(element: Element, preview: Preview): (() => void) | undefined {
  if (untrack(() => preview.drawing)) return undefined;
  const stop = whenNear(element, (isNear) => {
    if (isNear && !preview.drawing) near.add(preview);
    else near.delete(preview);
    askNext();
  });
  return () => {
    stop();
    near.delete(preview);
    requests.get(preview)?.abort();
  };
}

function askNext(): void {
  for (const preview of near) {
    if (requests.size >= MOST_AT_ONCE) return;
    near.delete(preview);
    if (!requests.has(preview)) void ask(preview);
  }
}

async function ask(preview: Preview): Promise<void> {
  const current = new AbortController();
  requests.set(preview, current);
  try {
    preview.drawing = await askDrawing(preview.model, preview.uid, current.signal);
  } catch (fault) {
    if (fault instanceof Problem && fault.passes) setTimeout(() => askAgain(preview, current.signal), (fault.retrySeconds ?? 0) * 1000 || PAUSE_MS);
  }
  requests.delete(preview);
  askNext();
}

function askAgain(preview: Preview, { aborted }: AbortSignal): void {
  if (aborted) return;
  near.add(preview);
  askNext();
}
