/** Predictions as shapes over a picture, in its pixels, and which of them the filter asks for. */

import type { Drawing, Inference, Prediction } from "./types.ts";

/** The ordinals of those that it asks for; null: it asks for none in particular. */
export type Asked = ReadonlySet<number> | null;

export function findAsked(inference: Inference | null | undefined): Asked {
  const predictions = inference?.predictions ?? [];
  if (typeof predictions[0]?.matched !== "boolean") return null;
  return new Set(predictions.filter((each) => each.matched).map((each) => each.ordinal));
}

/** What was asked for first, then by rank: what is not drawn is at the end. */
export function sortAsked<Of extends Pick<Prediction, "ordinal" | "rank">>(all: Of[], asked: Asked): Of[] {
  const late = (each: Of) => (asked && !asked.has(each.ordinal) ? 1 : 0);
  return all.toSorted((a, b) => late(a) - late(b) || a.rank - b.rank);
}

type Point = [x: number, y: number];

export interface Shape {
  ordinal: number;
  label: string | null;
  score: number | null;
  /** Whether the points are apart, and no outline. */
  isPoints: boolean;
  points: Point[];
}

/** The shapes with the best scores; a picture of more would show nothing. */
export const MOST_SHAPES = 500;

/** The longer edge of a thumbnail. */
const THUMBNAIL_PX = 320;
/** The fewest points of an area. */
const SMALLEST = 3;

export interface Size {
  width: number;
  height: number;
}

export function findSize(inference: Inference, loaded: Size | null): Size | null {
  const { width, height } = inference;
  return width && height ? { width, height } : loaded;
}

/** The shapes that the API draws: whole contours and keypoints too. */
export function readDrawing(drawing: Drawing, size: Size, asked: Asked, most = MOST_SHAPES): Shape[] {
  const [x, y] = drawing.units === "shares" ? [size.width, size.height] : [1, 1];
  return sortAsked(drawing.shapes, asked)
    .slice(0, most)
    .map(({ ordinal, label, score, kind, points }) => ({
      ordinal,
      label,
      score,
      isPoints: kind === "keypoints",
      points: points.map(([left, top]): Point => [left * x, top * y]),
    }));
}

/** Outlines as a thumbnail needs them: without points that are too close together to be told apart. */
export function thinShapes(shapes: Shape[], { width, height }: Size): Shape[] {
  const least = Math.max(width, height) / THUMBNAIL_PX;
  return shapes.map((shape) => (shape.isPoints ? shape : { ...shape, points: thin(shape.points, least) }));
}

function thin(points: Point[], least: number): Point[] {
  const left: Point[] = [];
  for (const point of points) {
    const last = left.at(-1);
    if (!last || Math.hypot(point[0] - last[0], point[1] - last[1]) >= least) left.push(point);
  }
  return left.length < SMALLEST ? points.slice(0, SMALLEST) : left;
}

/** Boxes, of what a page of inferences says of its predictions. */
export function toShapes(predictions: Prediction[], size: Size, asked: Asked, most = MOST_SHAPES): Shape[] {
  return sortAsked(predictions, asked)
    .slice(0, most)
    .flatMap((each) => {
      const points = turnedCorners(each, size) ?? corners(each);
      const { ordinal, label, score } = each;
      return points ? [{ ordinal, label, score, isPoints: false, points }] : [];
    });
}

function turnedCorners({ cx, cy, w, h, angle }: Prediction, { width, height }: Size): Point[] | null {
  if (cx === null || cy === null || w === null || h === null) return null;
  const [cos, sin] = [Math.cos(angle ?? 0), Math.sin(angle ?? 0)];
  const [across, down] = [(w * width) / 2, (h * height) / 2];
  const corner = (x: number, y: number): Point => [cx * width + x * cos - y * sin, cy * height + x * sin + y * cos];
  return [corner(-across, -down), corner(across, -down), corner(across, down), corner(-across, down)];
}

function corners({ xmin, ymin, xmax, ymax }: Prediction): Point[] | null {
  if (xmin === null || ymin === null || xmax === null || ymax === null) return null;
  return [[xmin, ymin], [xmax, ymin], [xmax, ymax], [xmin, ymax]];
}
