/** Thumbnails, asked for many at a time, when the first of them comes near the window. */

import { path, Problem, postLines } from "./api.ts";
import type { Size } from "./shapes.ts";

/** What wants a thumbnail. */
export interface Watcher {
  model: string;
  uid: string;
  shown: (address: string, size: Size | null) => void;
  failed: (problem: Problem) => void;
}

interface Line {
  uid: string;
  content_type: string | null;
  picture_width: number | null;
  picture_height: number | null;
  data: string | null;
  problem: { title: string; detail: string; status: number } | null;
}

const MOST_AT_ONCE = 60; // a page
const EDGE = 320;
const NEAR = "400px";
const PAUSE_MS = 5000;
/** After so long the page may do something else. */
const TASK_MS = 16;
/** Those without one, in the order of the page. */
const waiting = new Map<Element, Watcher>();
let seen: Element[] = [];

/** Svelte's action: asks for a thumbnail when the element comes near, and for those around it. */
export function whenSeen(element: Element, watcher: Watcher) {
  const addresses: string[] = [];
  const kept: Watcher = {
    ...watcher,
    shown(address, size) {
      addresses.push(address);
      watcher.shown(address, size);
    },
  };
  waiting.set(element, kept);
  observer.observe(element);
  return {
    destroy() {
      observer.unobserve(element);
      waiting.delete(element);
      kept.shown = (address) => URL.revokeObjectURL(address);
      kept.failed = () => {};
      addresses.forEach((address) => URL.revokeObjectURL(address));
    },
  };
}

const observer = new IntersectionObserver(
  (entries) => {
    const near = entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target);
    if (!near.length) return;
    if (!seen.length) setTimeout(askSeen); // those of this moment together
    seen.push(...near);
  },
  { root: document.getElementById("main"), rootMargin: NEAR }, // which scrolls: a margin of the window does not reach into it
);

function askSeen(): void {
  const near = new Set(seen);
  seen = [];
  while ([...near].some((element) => waiting.has(element))) {
    const [first, model] = [...waiting].find(([element]) => near.has(element)) ?? [];
    if (!first || !model) return;
    void askBatch(takeFrom(first, model.model));
  }
}

/**
 * Takes an element and those behind it of the same model; if these are few, those before it too, so that however
 * one scrolls, no request is for a few pictures while more wait.
 */
function takeFrom(first: Element, model: string): [Element, Watcher][] {
  const all = [...waiting].filter(([, each]) => each.model === model);
  const at = all.findIndex(([element]) => element === first);
  const behind = all.slice(at, at + MOST_AT_ONCE);
  const before = all.slice(Math.max(0, at + behind.length - MOST_AT_ONCE), at);
  const batch = [...behind, ...before];
  for (const [element] of batch) waiting.delete(element);
  return batch;
}

async function askBatch(batch: [Element, Watcher][]): Promise<void> {
  const left = new Map(batch.map((pair) => [pair[1].uid, pair]));
  const where = path("models", batch[0]?.[1].model ?? "", "inferences", "thumbnails");
  let begun = performance.now();
  try {
    for await (const line of postLines<Line>(where, { uids: [...left.keys()], edge: EDGE })) {
      const found = left.get(line.uid);
      left.delete(line.uid);
      if (found) show(line, found[1]);
      if (performance.now() - begun < TASK_MS) continue;
      await new Promise((resolve) => setTimeout(resolve));
      begun = performance.now();
    }
  } catch (fault) {
    const problem = fault instanceof Problem ? fault : new Problem(-2, "No picture", String(fault));
    left.forEach(([element, watcher]) => fail(element, watcher, problem));
  }
}

function show(line: Line, watcher: Watcher): void {
  const { problem, data, picture_width: width, picture_height: height } = line;
  if (problem) return watcher.failed(new Problem(problem.status, problem.title, problem.detail));
  const text = atob(data ?? "");
  const bytes = new Uint8Array(text.length); // a function for each byte would take a tenth of a second for a page
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
  const address = URL.createObjectURL(new Blob([bytes], { type: line.content_type ?? "" }));
  watcher.shown(address, width && height ? { width, height } : null);
}

/** Says why there is none, and asks again if that may pass. */
function fail(element: Element, watcher: Watcher, problem: Problem): void {
  watcher.failed(problem);
  if (!problem.passes) return;
  setTimeout(() => {
    if (!element.isConnected) return;
    waiting.set(element, watcher);
    observer.unobserve(element);
    observer.observe(element);
  }, (problem.retrySeconds ?? 0) * 1000 || PAUSE_MS);
}
