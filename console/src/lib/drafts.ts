/** A hold that is being written, also over one that somebody else has changed meanwhile. */

import type { Hold } from "./holds.ts";
import { readTypes, splitLines, writeTypes } from "./texts.ts";
import { fromLocal, toLocal } from "./times.ts";

export interface HoldDraft {
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
