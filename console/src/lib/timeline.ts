/** How many inferences came when, in bars of a fitting width. */

import type { Link } from "./router.svelte.ts";
import { askAggregate, askPage } from "./questions.ts";
import { readSpan } from "./format.ts";

const MOST_BARS = 60;
const SECOND = 1000;
const WIDTHS: [width: string, ms: number][] = [
  ["PT1S", SECOND],
  ["PT5S", 5 * SECOND],
  ["PT15S", 15 * SECOND],
  ["minute", 60 * SECOND],
  ["PT5M", 300 * SECOND],
  ["PT15M", 900 * SECOND],
  ["hour", 3600 * SECOND],
  ["PT6H", 6 * 3600 * SECOND],
  ["day", 86400 * SECOND],
  ["week", 7 * 86400 * SECOND],
  ["P30D", 30 * 86400 * SECOND],
];

export interface Bar {
  from: number;
  count: number;
  failed: number;
}

export interface Bars {
  bars: Bar[];
  from: number;
  to: number;
  /** Milliseconds that a bar is wide. */
  width: number;
  /** When the newest came, if that was asked. */
  last: string | null;
}

export async function askTimeline(link: Link, signal: AbortSignal): Promise<Bars | null> {
  const extent = await askExtent(link, signal);
  if (!extent) return null;
  const [name, width] = WIDTHS.find(([, ms]) => (extent.to - extent.from) / ms < MOST_BARS) ?? ["P365D", 365 * 86400e3];
  const failed = { function: "share", of: "ok", is: false, as: "failed" };
  const measures = [{ function: "count", as: "count" }, failed];
  const { groups } = await askAggregate(link, { group_by: [{ time: name }], measures, limit: 1000 }, signal);
  const bars = groups
    .map(({ key, measures }) => readBar(key.time ?? "", measures))
    .toSorted((a, b) => a.from - b.from);
  const from = Math.min(bars[0]?.from ?? extent.from, extent.from);
  return { bars, from, to: Math.max((bars.at(-1)?.from ?? 0) + width, extent.to), width, last: extent.last };
}

function readBar(time: string, measures: Record<string, unknown>): Bar {
  const count = Number(measures.count ?? 0);
  return { from: Date.parse(time), count, failed: Math.round(count * Number(measures.failed ?? 0)) };
}

/** The span that is asked about; of one that is open, where its inferences are. */
async function askExtent(link: Link, signal: AbortSignal) {
  const { from, to } = readSpan(link.time);
  if (from && to) return { from: Date.parse(from), to: Date.parse(to), last: null };
  const [oldest, last] = await askEnds(link, signal);
  if (!oldest || !last) return null;
  const first = Date.parse(from ?? oldest);
  return { from: first, to: Math.max(Date.parse(to ?? last), first + SECOND), last };
}

/** When the oldest and the newest came. Two pages are found by the index, whatever the number of inferences. */
async function askEnds(link: Link, signal: AbortSignal): Promise<(string | undefined)[]> {
  const pages = await Promise.all(["received_at", "-received_at"].map((sort) => askPage({ ...link, sort }, null, signal, 1)));
  if (pages.every(({ items, next }) => items.length || !next)) return pages.map(({ items }) => items[0]?.received_at);
  // of a filter that little matches, a page may end before it finds anything
  const measures = ["min", "max"].map((of) => ({ function: of, of: "received_at", as: of }));
  const { groups } = await askAggregate(link, { measures }, signal);
  return ["min", "max"].map((name) => groups[0]?.measures[name] as string | undefined);
}
