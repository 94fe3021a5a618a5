/** What a tile shows of an input. It outlives what is drawn of the tile, which goes when the tile is far from the window. */

import { Problem } from "./api.ts";
import { me } from "./caller.svelte.ts";
import type { Size } from "./shapes.ts";
import type { Drawing, Inference } from "./types.ts";

/** Most tiles are no wider. */
const EDGE = devicePixelRatio > 1 ? 320 : 256;

/** By inference and edge: they outlive their tiles, which leave the page when they are far from the window. */
const known = new WeakMap<Inference, Map<number, Preview>>();

export function findPreview(inference: Inference, edge = EDGE): Preview {
  const ofInference = known.get(inference) ?? new Map<number, Preview>();
  known.set(inference, ofInference);
  const preview = ofInference.get(edge) ?? new Preview(inference, edge);
  ofInference.set(edge, preview);
  return preview;
}

/** Lets what is asked for again have what was seen of it. */
export function keepPreviews(from: Inference | undefined, to: Inference): void {
  const seen = from && known.get(from);
  if (seen) known.set(to, seen);
}

class Preview {
  readonly model: string;
  readonly uid: string;
  /** Of the thumbnail: its longer edge, in pixels. */
  readonly edge: number;
  /** The thumbnail, as a `data:` address; empty: it is not there. */
  address = $state("");
  /** How an input begins that is text; null: it is none, or is not there. */
  text = $state<string | null>(null);
  problem = $state.raw<Problem | null>(null);
  /** Contours and keypoints, if the task has any and they were asked for. */
  drawing = $state.raw<Drawing | null>(null);
  /** Of the whole picture. */
  size = $state.raw<Size | null>(null);

  constructor({ model_id, uid }: Inference, edge: number) {
    this.model = model_id;
    this.uid = uid;
    this.edge = edge;
  }

  /** Shows a thumbnail in base64. A Blob for each would take several messages between processes of the browser. */
  show(address: string, size: Size | null): void {
    this.address = address;
    this.problem = null;
    this.size = size ?? this.size;
  }

  forget(): void {
    this.address = "";
  }
}

export type { Preview };

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
