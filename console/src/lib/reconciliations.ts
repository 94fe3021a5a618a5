/** Comparisons of the bucket with the index. */

import { change } from "./api.ts";
import type { Tone } from "./states.ts";
import type { Schemas } from "./types.ts";

export type Reconciliation = Schemas["Reconciliation"];
export type Finding = Schemas["Finding"];

/** What a comparison finds, and how it is said. The first is what a count is called in `counts`. */
export const KINDS: { kind: string; count: string; title: string; words: string }[] = [
  { kind: "orphan", count: "orphans", title: "Orphans", words: "Objects in the bucket that nothing in the index names." },
  { kind: "missing", count: "missing", title: "Missing", words: "Blobs that rows name and that are not in the bucket." },
  { kind: "unreadable", count: "unreadable", title: "Unreadable", words: "Objects that a rebuild could not read." },
];

/** Counts that are no fault, in words. */
export const COUNTS: Record<string, string> = {
  objects: "objects listed in the bucket",
  named: "blobs that rows name",
  young: "too new to be checked",
  awaited: "named by a dead letter or a parked event",
  unjudged: "not checked: their events may still arrive",
  rebuilt: "inferences indexed again",
  present: "were indexed already",
  erased_again: "were erased before, and stay erased",
  expired: "not kept by today's policies",
};

const FINAL = new Set(["done", "failed"]);

export function isOver(run: Reconciliation): boolean {
  return FINAL.has(run.state);
}

export function countFaults(run: Reconciliation): number {
  return KINDS.reduce((sum, { count }) => sum + (run.counts[count] ?? 0), 0);
}

/** What a comparison came to, in a word and a tone. */
export function readOutcome(run: Reconciliation): { state: string; tone: Tone } {
  if (run.state === "failed") return { state: "failed", tone: "bad" };
  if (!isOver(run)) return { state: run.state, tone: "busy" };
  const isOff = run.books !== null && run.books.difference !== 0;
  return countFaults(run) || isOff ? { state: "they differ", tone: "warn" } : { state: "they agree", tone: "good" };
}

/** Asks the retention service to compare; without a model, all of them. */
export async function requestRun(model: string): Promise<Reconciliation> {
  const body = model.trim() ? { model_id: model.trim() } : {};
  return (await change<Reconciliation>("POST", "reconciliations", body)).data;
}
