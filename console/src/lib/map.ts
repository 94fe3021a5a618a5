/**
 * Where inferences are: clusters of those that are near each other. Countries and cities are from Natural Earth and GeoNames and
 * come with the package: no map is fetched from elsewhere.
 */

import { geoCentroid } from "d3-geo";
import type { Feature, MultiPolygon, Polygon, Position } from "geojson";
import { feature } from "topojson-client";
import type { GeometryCollection, Topology } from "topojson-specification";
import cities from "../../data/places.json";
import { askAggregate } from "./questions.ts";
import type { Link } from "./router.svelte.ts";

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

export type World = Topology<{ countries: GeometryCollection<{ name: string }> }>;
type Shape = Feature<Polygon | MultiPolygon, { name: string }>;

export interface Country extends Area {
  name: string;
  shape: Shape;
  /** Where its name stands. */
  at: Position;
}

export interface Name {
  text: string;
  x: number;
  y: number;
  isCity: boolean;
}

/** The largest first. */
const CITIES = (cities as [string, number, number][]).map(([name, ...at]): { name: string; at: Position } => ({ name, at }));
const LETTER_PX = 6.4;
const LINE_PX = 15;
const MOST_NAMES = 70;
/** A wider map, in degrees, names countries alone. */
const WIDEST_WITH_CITIES = 100;
/** A narrower one is inside a country. */
const NARROWEST_WITH_COUNTRIES = 3;
const EARTH_KM = 6371;

/** `isFine`: on a scale of 1 to 50 million, which is much to load, in place of 110. */
export async function loadCountries(isFine: boolean): Promise<Country[]> {
  const { default: world } = isFine ? await import("world-atlas/countries-50m.json") : await import("world-atlas/countries-110m.json");
  return (feature(world, world.objects.countries).features as Shape[]).map(describe);
}

function describe(shape: Shape): Country {
  const { coordinates, type } = shape.geometry;
  const polygons = type === "Polygon" ? [coordinates] : coordinates;
  const boxes = polygons.map(([outer]) => findBox(outer ?? []));
  const [largest = 0] = boxes.map((box, number) => [measure(box), number] as const).sort(([a], [b]) => b - a)[0]?.slice(1) ?? [];
  const at = geoCentroid({ type: "Polygon", coordinates: polygons[largest] ?? [] });
  return { name: shape.properties.name, shape, at, ...joinAreas(boxes) };
}

function findBox(ring: Position[]): Area {
  const box = { west: 180, south: 90, east: -180, north: -90 };
  for (const [x = 0, y = 0] of ring) {
    box.west = Math.min(box.west, x);
    box.east = Math.max(box.east, x);
    box.south = Math.min(box.south, y);
    box.north = Math.max(box.north, y);
  }
  return box;
}

function measure({ west, south, east, north }: Area): number {
  return (east - west) * (north - south);
}

export function joinAreas(areas: Area[]): Area {
  return findBox(areas.flatMap(({ west, south, east, north }) => [[west, south], [east, north]]));
}

export function overlaps(a: Area, b: Area): boolean {
  return a.west < b.east && b.west < a.east && a.south < b.north && b.south < a.north;
}

function holds({ west, south, east, north }: Area, [x = 0, y = 0]: Position): boolean {
  return x > west && x < east && y > south && y < north;
}

/** The names on a map, the most important first, as far as none covers another. */
export function chooseNames(area: Area, countries: Country[], project: (at: [number, number]) => [number, number] | null): Name[] {
  const width = area.east - area.west;
  const named = width < NARROWEST_WITH_COUNTRIES ? [] : countries.filter(({ at }) => holds(area, at)).sort((a, b) => measure(b) - measure(a));
  const towns = width > WIDEST_WITH_CITIES ? [] : CITIES.filter(({ at }) => holds(area, at)).slice(0, 2 * MOST_NAMES);
  const taken: Area[] = [];
  const names: Name[] = [];
  for (const [{ name, at }, isCity] of [...named.map((each) => [each, false] as const), ...towns.map((each) => [each, true] as const)]) {
    const [x, y] = project([at[0] ?? 0, at[1] ?? 0]) ?? [0, 0];
    const half = (name.length * LETTER_PX) / 2;
    const box = { west: x - half, east: x + half, south: y - LINE_PX, north: y + (isCity ? LINE_PX / 2 : 0) };
    if (names.length >= MOST_NAMES || taken.some((other) => overlaps(box, other))) continue;
    taken.push(box);
    names.push({ text: name, x, y, isCity });
  }
  return names;
}

/** The nearest of the cities, and how far it is. */
export function findNearest([x, y]: [number, number]): { name: string; km: number } {
  const squeeze = Math.cos((y * Math.PI) / 180);
  const far = ([east = 0, north = 0]: Position) => Math.hypot((east - x) * squeeze, north - y);
  const { name, at } = CITIES.reduce((best, each) => (far(each.at) < far(best.at) ? each : best));
  return { name, km: (far(at) * Math.PI * EARTH_KM) / 180 };
}

/** The lines of the grid within a span: round numbers of degrees. */
export function listLines(from: number, to: number, most: number): number[] {
  const step = roundUp((to - from) / most);
  return Array.from({ length: Math.floor(to / step) - Math.ceil(from / step) + 1 }, (_, number) => (Math.ceil(from / step) + number) * step);
}

/** The least of 1, 2, 5, 10, 20 … that is not less. */
export function roundUp(number: number): number {
  const power = 10 ** Math.floor(Math.log10(number));
  return ([1, 2, 5].find((digit) => digit * power >= number) ?? 10) * power;
}

export function writeDegrees(degrees: number, [positive, negative]: [string, string]): string {
  const size = Number(Math.abs(degrees).toFixed(5));
  return `${size}° ${size === 0 ? "" : degrees > 0 ? positive : negative}`.trim();
}

/** The kilometres of a pixel of a map whose scale is in pixels a radian, at a latitude. */
export function kmPerPixel(scale: number, latitude: number): number {
  return (EARTH_KM * Math.cos((latitude * Math.PI) / 180)) / scale;
}
