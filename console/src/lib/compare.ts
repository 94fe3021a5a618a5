/** Two models over the same inputs, or one model in two spans of time. */

import { EMPTY_LINK, type Link } from "./link.ts";
import { askAggregate, askPage } from "./questions.ts";
import { quoteText } from "./cql.ts";
import type { Inference } from "./types.ts";

/** Both sides of a comparison, as its address has them. */
export interface Sides {
  a: Link;
  b: Link;
}

export interface Pair {
  a: Inference;
  b: Inference;
  /** From 0 (they agree) to 1 (another label). */
  difference: number;
  reason: string;
}

export interface LabelRow {
  label: string | null;
  a: number;
  b: number;
}

const LABELS = 12;
/** The hashes of one question: a filter has a limit. */
const NEWEST = 200;
const HASHES = 50;

export function readSides(search: string): Sides {
  const given = new URLSearchParams(search);
  const read = (name: string) => given.get(name) ?? "";
  const side = (model: string, time: string) => ({ ...EMPTY_LINK, model: read(model), time: read(time), filter: read("f") });
  return { a: side("a", "ta"), b: side("b", "tb") };
}

export function writeSides({ a, b }: Sides): string {
  const all = { a: a.model, b: b.model, ta: a.time, tb: b.time, f: a.filter };
  return new URLSearchParams(Object.entries(all).filter(([, text]) => text)).toString();
}

/** Returns the newest of one side that the other saw too, those that disagree most first. */
export async function askPairs({ a, b }: Sides, signal: AbortSignal): Promise<Pair[]> {
  const seen = (await askPage(a, null, signal, NEWEST)).items.filter((item) => item.data_hash);
  const newest = new Map(seen.toReversed().map((item) => [item.data_hash, item]));
  const hashes = [...newest.keys()].filter((hash) => hash !== null);
  const others = new Map<string | null, Inference>();
  for (let from = 0; from < hashes.length; from += HASHES) {
    const same = `data_hash IN (${hashes.slice(from, from + HASHES).map(quoteText).join(", ")})`;
    const filter = b.filter ? `(${b.filter}) AND ${same}` : same;
    const { items } = await askPage({ ...b, filter }, null, signal, NEWEST);
    for (const item of items.toReversed()) others.set(item.data_hash, item);
  }
  const pairs = [...newest].flatMap(([hash, item]) => {
    const other = others.get(hash);
    return other && other.uid !== item.uid ? [pairUp(item, other)] : [];
  });
  return pairs.toSorted((first, second) => second.difference - first.difference);
}

function pairUp(a: Inference, b: Inference): Pair {
  if (a.ok !== b.ok) return { a, b, difference: 3, reason: "One failed" };
  if (a.top_label !== b.top_label) return { a, b, difference: 2, reason: "Another label" };
  const counts = (a.prediction_count ?? 0) - (b.prediction_count ?? 0);
  if (counts) return { a, b, difference: 1 + Math.min(Math.abs(counts), 99) / 100, reason: `${Math.abs(counts)} more in ${counts > 0 ? "A" : "B"}` };
  const scores = Math.abs((a.top_score ?? 0) - (b.top_score ?? 0));
  return { a, b, difference: Math.min(scores, 1), reason: scores ? `Scores differ by ${scores.toFixed(2)}` : "They agree" };
}

export async function askLabels({ a, b }: Sides, signal: AbortSignal): Promise<LabelRow[]> {
  const [left, right] = await Promise.all([askTop(a, signal), askTop(b, signal)]);
  const labels = [...new Set([...left.keys(), ...right.keys()])];
  return labels
    .map((label) => ({ label, a: left.get(label) ?? 0, b: right.get(label) ?? 0 }))
    .toSorted((first, second) => Math.abs(second.a - second.b) - Math.abs(first.a - first.b));
}

async function askTop(link: Link, signal: AbortSignal): Promise<Map<string | null, number>> {
  const body = { group_by: ["top_label"], measures: [{ function: "count", as: "count" }], limit: LABELS };
  const { groups } = await askAggregate(link, body, signal);
  return new Map(groups.map(({ key, measures }) => [key.top_label ?? null, Number(measures.count)]));
}
