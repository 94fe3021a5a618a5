/** Which predictions the filter asks for, as the API says. */

import type { Inference, Prediction } from "./types.ts";

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
