/** The values of one field among the inferences of a filter: asked only when it is opened. */

import type { Link } from "./router.svelte.ts";
import { askAggregate } from "./questions.ts";
import { writeShortTime } from "./format.ts";

export interface Value {
  title: string;
  count: number;
  value: unknown;
  /** Of a range: what asks for it, with `$` for the name. */
  condition?: string;
}

const MOST = 10;
const BINS = 8;

interface Top {
  values: { value: unknown; count: number }[];
  others: number;
}
interface Histogram {
  bins: { from: number | string; to: number | string; count: number }[];
}

export async function askFacet(link: Link, name: string, kind: string, signal: AbortSignal): Promise<Value[]> {
  const isRange = kind === "number" || kind === "time";
  const measure = isRange
    ? { function: "histogram", of: name, bins: BINS, as: "result" }
    : { function: "top", of: name, limit: MOST, as: "result" };
  const { groups } = await askAggregate(link, { measures: [measure] }, signal);
  const result = groups[0]?.measures.result;
  if (!result) return [];
  return isRange ? readBins(result as Histogram, kind) : readTop(result as Top);
}

function readTop({ values }: Top): Value[] {
  return values.map(({ value, count }) => ({ title: value === null ? "no value" : String(value), value, count }));
}

function readBins({ bins }: Histogram, kind: string): Value[] {
  const write = (at: number | string) => (kind === "time" ? `TIMESTAMP('${at}')` : String(at));
  const show = (at: number | string) => (kind === "time" ? writeShortTime(String(at)) : String(at));
  return bins
    .filter((bin) => bin.count)
    .map(({ from, to, count }, index, all) => ({
      title: `${show(from)} – ${show(to)}`,
      value: from,
      count,
      // the last bin has its end in it
      condition: `$ >= ${write(from)} AND $ ${index === all.length - 1 ? "<=" : "<"} ${write(to)}`,
    }));
}
