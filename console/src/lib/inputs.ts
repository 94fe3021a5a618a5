/** Whether an input may be looked at, and why not. */

import type { Problem } from "./api.ts";
import { me } from "./caller.svelte.ts";
import type { Preview } from "./preview.svelte.ts";
import type { Inference } from "./types.ts";

/** Pictures of so few pixels are shown with sharp edges. */
const SMALL_PX = 96;

export function mayLook(inference: Inference): boolean {
  return me.may("read_inputs") && Boolean(inference.data_storage_key);
}

/** Says why there is no picture; empty: there is one, or it is on its way. */
export function excuse(inference: Inference, address: string, problem: Problem | null, isOdd: boolean): string {
  if (inference.data_deleted_at) return "The input was deleted";
  if (!inference.data_storage_key) return "No input is stored";
  if (!mayLook(inference) || problem?.status === 403) return "You don't have permission to see inputs";
  if (isOdd) return "The browser cannot show this format";
  return problem && !address ? problem.title : "";
}

/** Says it of a preview. */
export function excusePreview(inference: Inference, { address, problem, text }: Preview, isOdd = false): string {
  return excuse(inference, address, problem, isOdd) || (text === null ? "" : "The input is text, not a picture");
}

export function isSmall(size: { width: number; height: number } | null): boolean {
  return size !== null && Math.max(size.width, size.height) <= SMALL_PX;
}
