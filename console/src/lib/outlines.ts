/**
 * Contours and keypoints of tiles. The API reads them from the stored responses, so a tile asks when it comes near the
 * window, and only a few ask at a time. Until they come, and if they do not, the tile shows boxes.
 */

import { untrack } from "svelte";
import { Problem } from "./api.ts";
import { askDrawing } from "./questions.ts";
import type { Preview } from "./preview.svelte.ts";

const MOST_AT_ONCE = 3;
const NEAR = "200px";
const PAUSE_MS = 5000;
const previews = new Map<Element, Preview>();
/** Those near the window that are not asked for yet, the first to come first. */
const near = new Set<Element>();
const requests = new Map<Element, AbortController>();

/** Asks for the outlines when the element comes near, unless they are there; returns what ends it. */
export function drawWhenNear(element: Element, preview: Preview): (() => void) | undefined {
  if (untrack(() => preview.drawing)) return undefined;
  previews.set(element, preview);
  observer.observe(element);
  return () => {
    observer.unobserve(element);
    previews.delete(element);
    near.delete(element);
    requests.get(element)?.abort();
  };
}

const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting && previews.has(target)) near.add(target);
      else near.delete(target);
    }
    askNext();
  },
  { rootMargin: NEAR },
);

function askNext(): void {
  for (const element of near) {
    if (requests.size >= MOST_AT_ONCE) return;
    near.delete(element);
    observer.unobserve(element);
    void ask(element);
  }
}

async function ask(element: Element): Promise<void> {
  const preview = previews.get(element);
  if (!preview) return;
  const current = new AbortController();
  requests.set(element, current);
  try {
    const drawing = await askDrawing(preview.model, preview.uid, current.signal);
    if (!current.signal.aborted) preview.drawing = drawing;
  } catch (fault) {
    if (fault instanceof Problem && fault.passes) askLater(element, fault);
  }
  requests.delete(element);
  askNext();
}

function askLater(element: Element, { retrySeconds }: Problem): void {
  setTimeout(() => {
    if (previews.has(element)) observer.observe(element);
  }, (retrySeconds ?? 0) * 1000 || PAUSE_MS);
}
