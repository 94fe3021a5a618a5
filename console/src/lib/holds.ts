/** Legal holds, as the API shows them. */

import { showId } from "./ids.ts";
import type { Schemas } from "./types.ts";

export type Hold = Schemas["Hold"];
export type PlacedHold = Schemas["PlacedHold"];

export type Held = Schemas["HoldCount"];

export interface HoldChange {
  revision: number;
  change: string;
  at: string;
  actor: string;
  document: { reason: string };
}

/** What stands in place of a value that an erasure took. */
const ERASED = /^erased(:|$)/;

export const STATES: Record<string, string> = {
  in_force: "Nothing deletes what it keeps.",
  ended: "It has expired and no longer keeps anything.",
  released: "It was released and no longer keeps anything.",
};

/** Whether its values can be changed: an erasure may have removed them, and what is released stays so. */
export function isChangeable({ state, filter, inference_ids: ids }: Hold): boolean {
  return state !== "released" && ![filter, ids?.[0]].some((text) => ERASED.test(text ?? ""));
}

/** What a hold keeps, in words. */
export function writeWhat({ filter, inference_ids: ids }: Hold): string {
  return filter ?? `${ids?.length ?? 0} ID${ids?.length === 1 ? "" : "s"}`;
}

export function writeModel({ model_id: id }: Hold): string {
  return showId(id) ?? "every model, including future ones";
}
