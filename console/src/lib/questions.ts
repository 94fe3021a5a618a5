/** The questions to the API about what a link shows. */

import { get, path, post } from "./api.ts";
import { addCondition, quoteText } from "./cql.ts";
import { EMPTY_LINK, type Link } from "./router.svelte.ts";
import { readSpan } from "./format.ts";
import type { Aggregate, Drawing, Inference, InferencePage, Queryables, Retention, Schemas } from "./types.ts";

/** Few, so that they come soon. */
const FIRST_PAGE = 60;
/** Most of these tiles are far from the window, where they cost little. */
export const NEXT_PAGE = 120;

/** What every question about a filter and a time range has. */
export function buildConditions(link: Link): Record<string, unknown> {
  const { from, to } = readSpan(link.time);
  const window = { ...(from && { from }), ...(to && { to }) };
  return {
    ...(link.filter && { filter: link.filter, filter_lang: "cql2-text" }),
    ...((from || to) && { received_at: window }),
  };
}

function inferences(model: string, ...more: string[]): string {
  return path("models", model, "inferences", ...more);
}

export function askPage(link: Link, cursor: string | null, signal?: AbortSignal, limit = cursor ? NEXT_PAGE : FIRST_PAGE) {
  return post<InferencePage>(
    inferences(link.model, "query"),
    {
      ...buildConditions(link),
      sort: link.sort,
      limit,
      include: ["metadata", "predictions"],
      ...(cursor && { cursor }),
    },
    signal,
  );
}

export type Neighbours = Schemas["Neighbours"];

export function askNeighbours(link: Link, signal: AbortSignal) {
  const where = inferences(link.model, "neighbours");
  return post<Neighbours>(where, { ...buildConditions(link), uid: link.selected, sort: link.sort }, signal);
}

export async function askCount(link: Link, signal: AbortSignal): Promise<number> {
  const where = inferences(link.model, "count");
  return (await post<{ count: number }>(where, buildConditions(link), signal)).count;
}

export function askAggregate(link: Link, body: Record<string, unknown>, signal: AbortSignal) {
  const where = inferences(link.model, "aggregate");
  return post<Aggregate>(where, { ...buildConditions(link), ...body }, signal);
}

export function askOne(model: string, uid: string, signal: AbortSignal) {
  const where = inferences(model, `uid:${uid}`);
  return get<Inference>(`${where}?include=metadata,predictions`, signal);
}

/** One inference of a filter, whose predictions say whether it asks for them. */
export async function askAsked(link: Link, uid: string, signal: AbortSignal): Promise<Inference | null> {
  const filter = addCondition(link.filter, `uid = ${quoteText(uid)}`);
  return (await askPage({ ...link, filter, sort: "-received_at" }, null, signal, 1)).items[0] ?? null;
}

/** The newest first. */
export async function askSome(model: string, uids: string[], signal: AbortSignal): Promise<Inference[]> {
  const body = { inference_ids: uids.map((uid) => `uid:${uid}`), include: ["metadata", "predictions"] };
  return (await post<InferencePage>(inferences(model, "query"), body, signal)).items;
}

export function askDrawing(model: string, uid: string, signal: AbortSignal) {
  return get<Drawing>(inferences(model, `uid:${uid}`, "drawing"), signal);
}

export function askRetention(model: string, uid: string, signal: AbortSignal) {
  return get<Retention>(inferences(model, `uid:${uid}`, "retention"), signal);
}

export function askQueryables(model: string, signal: AbortSignal) {
  return get<Queryables>(path("models", model, "queryables"), signal);
}

const MOST_VALUES = 12;

/** Values of a text field that begin with what was typed, as a filter writes them. */
export async function askValues(model: string, name: string, prefix: string, signal: AbortSignal): Promise<string[]> {
  const measure = { function: "distinct", of: name, prefix, limit: MOST_VALUES, as: "result" };
  const { groups } = await askAggregate({ ...EMPTY_LINK, model }, { measures: [measure] }, signal);
  const result = groups[0]?.measures.result as { values: unknown[] } | undefined;
  return (result?.values ?? []).map((value) => quoteText(String(value)));
}

export function blobPath(inference: Inference, blob: "data" | "response" | "metadata"): string {
  return inferences(inference.model_id, `uid:${inference.uid}`, blob);
}
