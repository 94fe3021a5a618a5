/**
 * Contours and keypoints of tiles. The API reads them from the stored responses, so a tile asks when it comes near the
 * window, and only a few ask at a time. Until they come, and if they do not, the tile shows boxes.
 */

import { Problem } from "./api.ts";
import { askDrawing } from "./questions.ts";
import type { Drawing } from "./types.ts";

/** What wants outlines. */
export interface Sketch {
  model: string;
  uid: string;
  shown: (drawing: Drawing) => void;
}

const MOST_AT_ONCE = 3;
const NEAR = "200px";
const PAUSE_MS = 5000;
const sketches = new Map<Element, Sketch>();
/** Those near the window that are not asked for yet, the first to come first. */
const near = new Set<Element>();
const asked = new Map<Element, AbortController>();

/** Svelte's action: asks for the outlines when the element comes near. */
export function drawWhenNear(element: Element, sketch: Sketch) {
  sketches.set(element, sketch);
  observer.observe(element);
  return {
    destroy() {
      observer.unobserve(element);
      sketches.delete(element);
      near.delete(element);
      asked.get(element)?.abort();
    },
  };
}

const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting && sketches.has(target)) near.add(target);
      else near.delete(target);
    }
    askNext();
  },
  { rootMargin: NEAR },
);

function askNext(): void {
  for (const element of near) {
    if (asked.size >= MOST_AT_ONCE) return;
    near.delete(element);
    observer.unobserve(element);
    void ask(element);
  }
}

async function ask(element: Element): Promise<void> {
  const sketch = sketches.get(element);
  if (!sketch) return;
  const current = new AbortController();
  asked.set(element, current);
  try {
    const drawing = await askDrawing(sketch.model, sketch.uid, current.signal);
    if (!current.signal.aborted) sketch.shown(drawing);
  } catch (fault) {
    if (fault instanceof Problem && fault.passes) askLater(element, fault);
  }
  asked.delete(element);
  askNext();
}

function askLater(element: Element, { retrySeconds }: Problem): void {
  setTimeout(() => {
    if (sketches.has(element)) observer.observe(element);
  }, (retrySeconds ?? 0) * 1000 || PAUSE_MS);
}
