/** Two models over the same inputs, or one model in two spans of time. */

import { addCondition, quoteText } from "./cql.ts";
import { EMPTY_LINK, type Link } from "./router.svelte.ts";
import { writeCount } from "./format.ts";
import { askAggregate, askPage } from "./questions.ts";
import type { Inference, InferencePage } from "./types.ts";

/** Both sides of a comparison, as its address has them. */
export interface Sides {
  a: Link;
  b: Link;
}

interface Pair {
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

/** What was compared so far. */
export interface Compared {
  pairs: Pair[];
  /** How many inferences of A were looked at, and where the next ones begin; null: these were all. */
  seen: number;
  next: string | null;
}

const LABELS = 12;
/** So many of A are looked at in one step. */
const STEP = 200;
/** The hashes of one question: a filter has a limit. */
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

/** Compares the newest of A, or those behind what was compared before, with B; what disagrees most comes first. */
export async function askPairs({ a, b }: Sides, before: Compared | null, signal: AbortSignal): Promise<Compared> {
  const page = await askPage(a, before?.next ?? null, signal, STEP);
  const known = new Set(before?.pairs.map((pair) => pair.a.data_hash));
  const fresh = page.items.filter(({ data_hash: hash }) => hash && !known.has(hash));
  const newest = new Map(fresh.toReversed().map((item) => [item.data_hash ?? "", item]));
  const others = await askByHash(b, [...newest.keys()], signal);
  const pairs = [...newest].flatMap(([hash, item]) => {
    const other = others.get(hash);
    return other && other.uid !== item.uid ? [pairUp(item, other)] : [];
  });
  return {
    pairs: [...(before?.pairs ?? []), ...pairs].toSorted((first, second) => second.difference - first.difference),
    seen: (before?.seen ?? 0) + page.items.length,
    next: page.next,
  };
}

/** The newest with each of these inputs. */
async function askByHash(link: Link, hashes: string[], signal: AbortSignal): Promise<Map<string, Inference>> {
  const found = new Map<string, Inference>();
  for (let from = 0; from < hashes.length; from += HASHES) {
    let left = hashes.slice(from, from + HASHES);
    let cursor: string | null = null;
    do { // an input may have been sent many times: what was found is not asked for again
      const filter = addCondition(link.filter, `data_hash IN (${left.map(quoteText).join(", ")})`);
      const page: InferencePage = await askPage({ ...link, filter }, cursor, signal, STEP);
      for (const item of page.items) if (item.data_hash && !found.has(item.data_hash)) found.set(item.data_hash, item);
      cursor = page.items.length ? null : page.next; // with none, the search was cut short
      left = page.next ? left.filter((hash) => !found.has(hash)) : [];
    } while (left.length);
  }
  return found;
}

function pairUp(a: Inference, b: Inference): Pair {
  if (a.ok !== b.ok) return { a, b, difference: 3, reason: `${a.ok ? "B" : "A"} failed` };
  if (a.top_label !== b.top_label) return { a, b, difference: 2, reason: "Different top labels" };
  const counts = (a.prediction_count ?? 0) - (b.prediction_count ?? 0);
  if (counts) return { a, b, difference: 1 + Math.min(Math.abs(counts), 99) / 100, reason: `${writeCount(Math.abs(counts), "more prediction")} in ${counts > 0 ? "A" : "B"}` };
  const scores = Math.abs((a.top_score ?? 0) - (b.top_score ?? 0));
  return { a, b, difference: Math.min(scores, 1), reason: scores ? `Top scores differ by ${scores.toFixed(2)}` : "Same result" };
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
