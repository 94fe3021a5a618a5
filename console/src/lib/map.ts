/** Where inferences are, in cells of a grid over the places that they have. */

import type { Link } from "./link.ts";
import { askAggregate } from "./questions.ts";

export interface Area {
  west: number;
  south: number;
  east: number;
  north: number;
}

export interface Cell extends Area {
  count: number;
}

export interface Cells {
  cells: Cell[];
  /** What the map shows: the places, with a margin. */
  area: Area;
}

/** A bin of a group; one without an end lies beyond the map. */
interface Bin {
  from: number | null;
  to: number | null;
}

const ACROSS = 36;
const DOWN = 24;
/** The narrowest map, in degrees: about a hundred metres. */
const LEAST = 0.001;
const MARGIN = 0.08;

export async function askCells(link: Link, signal: AbortSignal): Promise<Cells | null> {
  const area = await askArea(link, signal);
  if (!area) return null;
  const [x, y] = [divide(area.west, area.east, ACROSS), divide(area.south, area.north, DOWN)];
  const { groups } = await askAggregate(link, buildQuestion(x, y), signal);
  const cells = groups.flatMap(({ key, measures }) => {
    const [across, down] = [key.x, key.y] as unknown as Bin[];
    if (across?.from == null || across.to == null || down?.from == null || down.to == null) return [];
    return [{ west: across.from, east: across.to, south: down.from, north: down.to, count: Number(measures.count) }];
  });
  return { cells, area };
}

function buildQuestion(x: number[], y: number[]) {
  const bin = (of: string, bounds: number[], as: string) => ({ histogram: { of, bounds }, as });
  return {
    group_by: [bin("longitude", x, "x"), bin("latitude", y, "y")],
    measures: [{ function: "count", as: "count" }],
    limit: 1000,
  };
}

async function askArea(link: Link, signal: AbortSignal): Promise<Area | null> {
  const measures = ["longitude", "latitude"].flatMap((of) =>
    ["min", "max"].map((name) => ({ function: name, of, as: `${name}_${of}` })),
  );
  const { groups } = await askAggregate(link, { measures }, signal);
  const extremes = groups[0]?.measures ?? {};
  if (extremes.min_longitude == null || extremes.min_latitude == null) return null;
  const [west, east] = widen(Number(extremes.min_longitude), Number(extremes.max_longitude), 180);
  const [south, north] = widen(Number(extremes.min_latitude), Number(extremes.max_latitude), 90);
  return { west, south, east, north };
}

function widen(from: number, to: number, most: number): [number, number] {
  const margin = Math.max((to - from) * MARGIN, LEAST / 2);
  return [Math.max(-most, from - margin), Math.min(most, to + margin)];
}

function divide(from: number, to: number, parts: number): number[] {
  return Array.from({ length: parts + 1 }, (_, part) => from + ((to - from) * part) / parts);
}

/** The condition that finds what lies in an area. */
export function writeArea({ west, south, east, north }: Area): string {
  const text = [west, south, east, north].map((degrees) => Number(degrees.toFixed(6))).join(", ");
  return `S_INTERSECTS(location, BBOX(${text}))`;
}
