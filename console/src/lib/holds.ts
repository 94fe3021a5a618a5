/** Legal holds: how the API shows them, and how they are written, also over one that somebody else has changed meanwhile. */

import { fromLocal, showId, toLocal } from "./format.ts";
import { readTypes, splitLines, writeTypes } from "./texts.ts";
import type { Schemas } from "./types.ts";

export type Hold = Schemas["Hold"];
export type PlacedHold = Schemas["PlacedHold"];

export type Held = Schemas["HoldCount"];

export interface HoldChange {
  revision: number;
  change: string;
  at: string;
  actor: string;
  document: { reason: string };
}

/** What stands in place of a value that an erasure took. */
const ERASED = /^erased(:|$)/;

export const STATES: Record<string, string> = {
  in_force: "Nothing deletes what it keeps.",
  ended: "It has expired and no longer keeps anything.",
  released: "It was released and no longer keeps anything.",
};

/** Whether its values can be changed: an erasure may have removed them, and what is released stays so. */
export function isChangeable({ state, filter, inference_ids: ids }: Hold): boolean {
  return state !== "released" && ![filter, ids?.[0]].some((text) => ERASED.test(text ?? ""));
}

/** What a hold keeps, in words. */
export function writeWhat({ filter, inference_ids: ids }: Hold): string {
  return filter ?? `${ids?.length ?? 0} ID${ids?.length === 1 ? "" : "s"}`;
}

export function writeModel({ model_id: id }: Hold): string {
  return showId(id) ?? "every model, including future ones";
}

interface HoldDraft {
  way: "filter" | "ids";
  filter: string;
  ids: string;
  /** Of keys that no inference has yet, a line each. */
  types: string;
  name: string;
  reason: string;
  /** In the reader's time; empty: until it is released. */
  until: string;
}

export function makeDraft(filter = ""): HoldDraft {
  return { way: "filter", filter, ids: "", types: "", name: "", reason: "", until: "" };
}

export function toDraft(hold: Hold): HoldDraft {
  return {
    way: hold.inference_ids ? "ids" : "filter",
    filter: hold.filter ?? "",
    ids: hold.inference_ids?.join("\n") ?? "",
    types: writeTypes(hold.types),
    name: hold.name,
    reason: hold.reason,
    until: hold.until ? toLocal(hold.until) : "",
  };
}

/** A draft over the hold as it is now: what the reader typed stays, the rest is as it is now. */
export function mergeDraft(draft: HoldDraft, before: Hold, now: Hold): HoldDraft {
  const [old, fresh] = [toDraft(before), toDraft(now)];
  const names = Object.keys(fresh) as (keyof HoldDraft)[];
  const typed = names.filter((name) => draft[name] !== old[name]).map((name) => [name, draft[name]]);
  return { ...fresh, ...Object.fromEntries(typed) };
}

export function saysWhat({ way, filter, ids }: HoldDraft): boolean {
  return way === "filter" ? filter.trim() !== "" : splitLines(ids).length > 0;
}

/** What the API takes. `model`: null for every model; `before`: the hold that this changes. */
export function buildHold(draft: HoldDraft, model: string | null, before: Hold | null = null): Record<string, unknown> {
  const until = findUntil(draft, before);
  return {
    name: draft.name.trim(),
    reason: draft.reason.trim(),
    ...(model !== null && { model_id: model }),
    ...(until && { until }),
    ...(draft.way === "ids"
      ? { inference_ids: findIds(draft, before) }
      : { filter: draft.filter.trim(), filter_lang: "cql2-text", types: readTypes(draft.types) }),
  };
}

/** An end that was not touched stays exact: the field has no seconds. */
function findUntil({ until }: HoldDraft, before: Hold | null): string | null {
  const isSame = before !== null && until === toDraft(before).until;
  return isSame ? before.until : fromLocal(until) || null;
}

function findIds({ ids }: HoldDraft, before: Hold | null): string[] {
  const same = before && ids === toDraft(before).ids ? before.inference_ids : null;
  return same ?? splitLines(ids);
}
