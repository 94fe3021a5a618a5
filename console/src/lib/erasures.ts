/** Erasures: how the API shows them, and how they are asked for. */

import { addCondition } from "./cql.ts";
import { type Extent, readExtent } from "./extents.ts";
import { readSpan } from "./format.ts";
import type { Schemas } from "./types.ts";

export type Erasure = Omit<Schemas["Erasure"], "asked"> & { asked: ErasureCriteria | null };

interface ErasureCriteria {
  filter?: string;
  inference_ids?: string[];
  /** How many, once it is over. */
  ids?: number;
  subject?: { key: string; type: string | null; value?: string };
}

/** What a dry run counts. */
export type Estimate = Schemas["ErasureEstimate"];

export const STATES: Record<string, string> = {
  pending: "Requested. The retention service starts it within seconds.",
  marking: "Matching inferences are found and hidden from queries, batch by batch.",
  deleting_objects: "The objects of the current batch are being deleted.",
  verifying: "The store verifies that the objects of the current batch are gone.",
  deleting_rows: "The rows of the current batch are being deleted.",
  certifying: "Everything is erased. The certificate is being signed.",
  certified: "Everything is erased, and the certificate is signed.",
  deleted: "Everything is erased. There is no certificate, because no signing key is set.",
  partly_held: "A legal hold keeps the rest, which queries show again. It is erased when the hold is released, unless you give it up.",
  giving_up: "What holds keep is being given up. The certificate comes next.",
  failed: "Something could not be erased. The store retries it.",
  cancelling: "It is being cancelled. Queries show everything again in a moment.",
  cancelled: "It was cancelled. Queries show again what it had hidden.",
};

const OVER = ["certified", "deleted", "cancelled"];
const STUCK = ["failed", "partly_held"];
const CANCELLABLE = ["pending", "marking", "failed", "partly_held"];
const SOON_MS = 1500;
const LATER_MS = 10_000;

/** After how long its progress is asked for again; null: nothing more happens to it. */
export function findPause({ state, certificate }: Erasure): number | null {
  if (OVER.includes(state)) return null;
  return STUCK.includes(state) || certificate !== null ? LATER_MS : SOON_MS;
}

export function mayCancel(erasure: Erasure): boolean {
  return erasure.deleting_since === null && CANCELLABLE.includes(erasure.state);
}

const PHASES = ["Requested", "Hidden from queries", "Deleted and checked", "Certified"] as const;

/** Its phases; without a key that signs, there is no certificate. */
export function listPhases({ state }: Erasure): readonly string[] {
  return state === "deleted" ? PHASES.slice(0, -1) : PHASES;
}

/** The phase that it is in; past the last one, if nothing is left to do. */
export function findPhase(erasure: Erasure): number {
  const { state } = erasure;
  if (state === "certified" || state === "deleted") return PHASES.length;
  if (state === "certifying" || state === "giving_up") return 3;
  if (erasure.deleting_since !== null) return 2;
  return erasure.begun_at === null ? 0 : 1;
}

/** What requested by, in words. */
export function writeCriteria({ asked, cause }: Erasure): string {
  if (asked?.filter) return asked.filter;
  if (asked?.subject) {
    const { key, value } = asked.subject;
    return value === undefined ? `${key} = (forgotten)` : `${key} = ${value}`;
  }
  const ids = asked?.inference_ids?.length ?? asked?.ids;
  return ids === undefined ? nameCause(cause) : `${ids} ID${ids === 1 ? "" : "s"}`;
}

export function nameCause(cause: string): string {
  const names: Record<string, string> = {
    policy: "a policy",
    request: "a request",
    expired_arrival: "it arrived expired",
    replaced: "ground truth was replaced",
    erased_again: "it came again after it was erased",
    orphans: "orphans of a reconciliation",
  };
  return names[cause] ?? cause;
}

/** By what to erase, as the API takes it. */
export type By = { filter: string } | { inference_ids: string[] } | { subject: { key: string; type?: string; value: string } };

export function buildBody(extent: Extent, by: By): Record<string, unknown> {
  const whose = extent.kind === "project" ? { project_id: extent.id } : extent.kind === "model" ? { model_ids: [extent.id] } : {};
  return { ...whose, ...by, ...("filter" in by && { filter_lang: "cql2-text" }) };
}

/** How many things would go: the number that has to be typed. */
export function countGoing({ inferences, dead_letters, parked_events }: Estimate): number {
  return inferences + dead_letters + parked_events;
}

/** A filter that also has the time range of a link: an erasure takes a filter alone. */
function addTime(filter: string, time: string): string {
  const { from, to } = readSpan(time);
  let text = filter;
  if (from) text = addCondition(text, `received_at >= TIMESTAMP('${toUtc(from)}')`);
  if (to) text = addCondition(text, `received_at < TIMESTAMP('${toUtc(to)}')`);
  return text;
}

/** As CQL2 writes an instant. The text stays as it is, if it can: a Date has no microseconds. */
function toUtc(text: string): string {
  return text.endsWith("Z") ? text : new Date(text).toISOString();
}

/** What the address of a new erasure or hold has: of what, and by which filter. */
export function readNew(search: string): { extent: Extent | null; filter: string } {
  const given = new URLSearchParams(search);
  const filter = addTime(given.get("f") ?? "", given.get("t") ?? "");
  return { extent: readExtent(given.get("of") ?? ""), filter };
}
