/** Ground truth: what the API says of an inference, what of the predictions may be true, and what is asked about it. */

import { change, get, path } from "./api.ts";
import { askAggregate } from "./questions.ts";
import { EMPTY_LINK } from "./router.svelte.ts";
import { scores } from "./scores.svelte.ts";
import { type Size, toShapes } from "./shapes.ts";
import type { Task } from "./tasks.ts";
import type { Inference, Model, Schemas } from "./types.ts";

export type Truth = Schemas["Truth"];
export type TruthItem = Schemas["TruthItem"];
export type Box = [xmin: number, ymin: number, xmax: number, ymax: number];

/** Who sets it here. */
export const SOURCE = "human";
export const HAS_TRUTH = "has_truth = TRUE";
export const NO_TRUTH = "has_truth = FALSE";
export const DISAGREES = "truth_label <> top_label";

const ANYTHING: TruthItem = { label: null, box: null, text: null, value: null };

export function makeItem(known: Partial<TruthItem>): TruthItem {
  return { ...ANYTHING, ...known };
}

function inferencePath({ model_id: model, uid }: Inference): string {
  return path("models", model, "inferences", `uid:${uid}`, "ground-truth");
}

export async function askTruth(inference: Inference, signal: AbortSignal): Promise<Truth[]> {
  return (await get<{ sets: Truth[] }>(inferencePath(inference), signal)).sets;
}

/** The ETag of a set, or of none. */
export function writeTag(set: Truth | null): string {
  return set ? `"${set.revision}@${set.at}"` : '"0"';
}

/** Replaces what a person has said; `items` null: takes it away. `tag`: of what is replaced; null: whatever that is. */
export async function saveTruth(inference: Inference, items: TruthItem[] | null, tag: string | null): Promise<Truth | null> {
  if (!items) {
    await change<null>("DELETE", inferencePath(inference), undefined, tag);
    return null;
  }
  return (await change<Truth>("PUT", inferencePath(inference), { source: SOURCE, complete: true, items }, tag)).data;
}

/** The predictions as truth: boxes whose scores are shown, else the best. Null: there is nothing to be right. */
export function accept(inference: Inference, { way }: Task, size: Size | null): TruthItem[] | null {
  const predictions = (inference.predictions ?? []).toSorted((a, b) => a.rank - b.rank);
  if (inference.ok === false) return null;
  if (way === "shapes") return listBoxes(inference, size).filter(({ score }) => scores.has({ score })).map(({ label, box }) => makeItem({ label, box }));
  if (way === "tokens") return predictions.map(({ label, text }) => makeItem({ label, text }));
  const best = predictions[0];
  if (!best) return null;
  if (best.value !== null) return [makeItem({ value: best.value })];
  if (best.label !== null) return [makeItem({ label: best.label })];
  const text = best.answer ?? best.text;
  return text === null ? null : [makeItem({ text })];
}

export interface Predicted {
  ordinal: number;
  label: string | null;
  score: number | null;
  box: Box;
}

/** The boxes around what was predicted. Turned ones need the size of the picture. */
export function listBoxes(inference: Inference, size: Size | null): Predicted[] {
  return toShapes(inference.predictions ?? [], size ?? { width: 0, height: 0 }, null).map(({ ordinal, label, score, points }) => {
    const [across, down] = [points.map(([x]) => x), points.map(([, y]) => y)];
    return { ordinal, label, score, box: [Math.min(...across), Math.min(...down), Math.max(...across), Math.max(...down)] };
  });
}

export function isSameBox(box: number[] | null, other: number[] | null): boolean {
  return box !== null && other !== null && box.every((edge, place) => edge === other[place]);
}

const MOST_CLASSES = 30;

/** The labels of a model, those that came most often first. */
export async function askClasses(id: string, model: Model | null, signal: AbortSignal): Promise<string[]> {
  const body = { measures: ["count"], group_by: ["label"], limit: MOST_CLASSES };
  const { groups } = await askAggregate({ ...EMPTY_LINK, model: id }, body, signal);
  const seen = groups.flatMap(({ key }) => (typeof key.label === "string" ? [key.label] : []));
  return [...new Set([...seen, ...(model?.class_labels ?? [])])].slice(0, MOST_CLASSES);
}

/** The key of each class, empty for none: its own digit if the classes are digits, else its place, 0 for the tenth. */
export function findKeys(classes: string[]): string[] {
  const isDigit = (label: string) => /^\d$/.test(label);
  const areDigits = classes.some(isDigit);
  return classes.map((label, place) => (areDigits ? (isDigit(label) ? label : "") : place < 10 ? String((place + 1) % 10) : ""));
}
