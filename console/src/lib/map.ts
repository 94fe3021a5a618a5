/** Where inferences are: clusters of those that are near each other on a map. */

import type { Link } from "./link.ts";
import { askAggregate } from "./questions.ts";

export interface Area {
  west: number;
  south: number;
  east: number;
  north: number;
}

/** Its area is that of the inferences, not of the map's cell. */
export interface Cluster extends Area {
  count: number;
}

/** A cell's span; without an end it lies beyond the map. */
interface Bin {
  from: number | null;
  to: number | null;
}

const EXTREMES = (["longitude", "latitude"] as const).flatMap((of) =>
  (["min", "max"] as const).map((name) => ({ function: name, of, as: `${name}_${of}` })),
);
/** So that an area around one place, with its digits cut, has the place in it. */
const MARGIN = 1e-6;

/** The area of all that match; null: none of them has a place. */
export async function askArea(link: Link, signal: AbortSignal): Promise<Area | null> {
  const { groups } = await askAggregate(link, { measures: EXTREMES }, signal);
  return readArea(groups[0]?.measures ?? {});
}

/** The clusters in the cells of a grid: `across` and `down` are the degrees where its cells meet. */
export async function askClusters(link: Link, across: number[], down: number[], signal: AbortSignal): Promise<Cluster[]> {
  const bin = (of: string, bounds: number[]) => ({ histogram: { of, bounds }, as: of });
  const question = {
    group_by: [bin("longitude", across), bin("latitude", down)],
    measures: [{ function: "count", as: "count" }, ...EXTREMES],
    limit: 1000,
  };
  const { groups } = await askAggregate(link, question, signal);
  return groups.flatMap(({ key, measures }) => {
    const isInside = Object.values(key as Record<string, Bin | null>).every((bin) => bin?.from != null && bin.to != null);
    const area = readArea(measures);
    return isInside && area ? [{ ...area, count: Number(measures.count) }] : [];
  });
}

function readArea(measures: Record<string, unknown>): Area | null {
  const read = (name: string) => (measures[name] == null ? NaN : Number(measures[name]));
  const area = { west: read("min_longitude"), south: read("min_latitude"), east: read("max_longitude"), north: read("max_latitude") };
  return Object.values(area).every(Number.isFinite) ? area : null;
}

/** The condition that finds what lies in an area. */
export function writeArea({ west, south, east, north }: Area): string {
  const text = [
    Math.max(-180, west - MARGIN),
    Math.max(-90, south - MARGIN),
    Math.min(180, east + MARGIN),
    Math.min(90, north + MARGIN),
  ].map((degrees) => Number(degrees.toFixed(6)));
  return `S_INTERSECTS(location, BBOX(${text.join(", ")}))`;
}
