/** Thumbnails, and how texts begin: asked for many at a time, when the first of them comes near the window. */

import { path, post, Problem } from "./api.ts";
import { decodeBase64 } from "./hex.ts";
import { whenNear } from "./tiles.ts";
import type { Preview } from "./preview.svelte.ts";

interface Line {
  uid: string;
  content_type: string | null;
  picture_width: number | null;
  picture_height: number | null;
  data: string | null;
  problem: { title: string; detail: string; status: number } | null;
}

const MOST_AT_ONCE = 60; // a page
const PAUSE_MS = 5000;
/** Thumbnails of so many letters are held; those that were far from the window for longest are asked for again. */
const MOST_HELD = 40_000_000;
/** Pictures of a larger edge are asked for a few at a time. */
const LARGE_EDGE = 512;
const MOST_LARGE = 12;
/** Those without one, in the order of the page. */
const waiting = new Set<Preview>();
/** Those that are asked for. */
const pending = new Set<Preview>();
/** Those with one, those that came near last at the end. */
const held = new Set<Preview>();
const watched = new Map<Element, Preview>();
const near = new Map<Element, Preview>();
let heldLetters = 0;
let isPlanned = false;

/** Asks for a thumbnail when the element comes near, and for those around it; `hear` is told as `whenNear` tells. */
export function watchPreview(element: Element, preview: Preview, hear?: (isNear: boolean) => void): () => void {
  watched.set(element, preview);
  if (!preview.address && preview.text === null && !preview.problem && !pending.has(preview)) waiting.add(preview);
  const stop = whenNear(element, (isNear) => {
    if (isNear) approach(element, preview);
    else near.delete(element);
    hear?.(isNear);
  });
  return () => {
    stop();
    watched.delete(element);
    near.delete(element);
    if (!isIn(watched, preview)) waiting.delete(preview);
  };
}

/** Patches of one picture have it together. */
function isIn(elements: Map<Element, Preview>, preview: Preview): boolean {
  return [...elements.values()].includes(preview);
}

function approach(element: Element, preview: Preview): void {
  near.set(element, preview);
  if (held.delete(preview)) held.add(preview);
  if (isPlanned || !waiting.has(preview)) return;
  isPlanned = true;
  queueMicrotask(askNear); // those of this moment together, before they are drawn
}

function askNear(): void {
  isPlanned = false;
  for (const preview of near.values()) if (waiting.has(preview)) void askBatch(takeFrom(preview));
}

/**
 * Takes a tile and those behind it of the same model; if these are few, those before it too, so that however
 * one scrolls, no request is for a few pictures while more wait.
 */
function takeFrom(first: Preview): Preview[] {
  const all = [...waiting].filter((each) => each.model === first.model && each.edge === first.edge);
  const most = first.edge > LARGE_EDGE ? MOST_LARGE : MOST_AT_ONCE;
  const at = all.indexOf(first);
  const behind = all.slice(at, at + most);
  const before = all.slice(Math.max(0, at + behind.length - most), at);
  const batch = [...behind, ...before];
  for (const each of batch) waiting.delete(each);
  return batch;
}

async function askBatch(batch: Preview[]): Promise<void> {
  for (const each of batch) pending.add(each);
  const byUid = Map.groupBy(batch, (preview) => preview.uid); // an inference may be in several groups
  const where = path("models", batch[0]?.model ?? "", "inferences", "thumbnails");
  try {
    const { items } = await post<{ items: Line[] }>(where, { uids: [...byUid.keys()], edge: batch[0]?.edge });
    for (const line of items) { // all at once: the page is drawn again once
      for (const preview of byUid.get(line.uid) ?? []) show(line, preview);
    }
  } catch (fault) {
    const problem = fault instanceof Problem ? fault : new Problem(-2, "No picture", String(fault));
    batch.forEach((preview) => fail(preview, problem));
  }
  for (const each of batch) pending.delete(each);
}

function show(line: Line, preview: Preview): void {
  const { problem, data, content_type: mediaType, picture_width: width, picture_height: height } = line;
  if (problem) {
    preview.problem = new Problem(problem.status, problem.title, problem.detail);
    return;
  }
  if (mediaType === "text/plain") {
    preview.text = new TextDecoder().decode(decodeBase64(data ?? ""));
    return;
  }
  forget(preview);
  preview.show(`data:${mediaType ?? ""};base64,${data ?? ""}`, width && height ? { width, height } : null);
  held.add(preview);
  heldLetters += preview.address.length;
  for (const each of held) {
    if (heldLetters <= MOST_HELD) return;
    if (isIn(near, each)) continue;
    forget(each);
    if (isIn(watched, each)) waiting.add(each);
  }
}

function forget(preview: Preview): void {
  if (held.delete(preview)) heldLetters -= preview.address.length;
  preview.forget();
}

/** Says why there is none, and asks again if that may pass. */
function fail(preview: Preview, problem: Problem): void {
  preview.problem = problem;
  if (!problem.passes) return;
  setTimeout(() => {
    preview.problem = null;
    if (!isIn(watched, preview)) return;
    waiting.add(preview);
    askNear();
  }, (problem.retrySeconds ?? 0) * 1000 || PAUSE_MS);
}
