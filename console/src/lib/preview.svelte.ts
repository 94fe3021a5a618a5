/** What a tile shows of an input. It outlives what is drawn of the tile, which goes when the tile is far from the window. */

import { Problem } from "./api.ts";
import type { Size } from "./shapes.ts";
import type { Drawing, Inference } from "./types.ts";

export class Preview {
  readonly model: string;
  readonly uid: string;
  /** The thumbnail, as a `data:` address; empty: it is not there. */
  address = $state("");
  problem = $state.raw<Problem | null>(null);
  /** Contours and keypoints, if the task has any and they were asked for. */
  drawing = $state.raw<Drawing | null>(null);
  /** Of the whole picture. */
  size = $state.raw<Size | null>(null);

  constructor({ model_id, uid }: Inference) {
    this.model = model_id;
    this.uid = uid;
  }

  /** Shows a thumbnail in base64. A Blob for each would take several messages between processes of the browser. */
  show(mediaType: string, base64: string, size: Size | null): void {
    this.address = `data:${mediaType};base64,${base64}`;
    this.problem = null;
    this.size = size ?? this.size;
  }

  forget(): void {
    this.address = "";
  }
}
