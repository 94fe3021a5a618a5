/** The inferences of one model that the reader has selected. */

import { quoteText } from "./cql.ts";
import type { Row } from "./rows.svelte.ts";

class Selection {
  model = $state("");
  /** Their ids, by uid. */
  ids = $state.raw<ReadonlyMap<string, string>>(new Map());

  /** Selects an inference, or leaves it out; those of another model are forgotten. */
  toggle({ uid, model_id, inference_id }: Row): void {
    const ids = new Map(this.model === model_id ? this.ids : []);
    if (!ids.delete(uid)) ids.set(uid, inference_id);
    this.model = model_id;
    this.ids = ids;
  }

  /** Selects all of these inferences of one model too. */
  add(items: Row[]): void {
    const [first] = items;
    if (!first) return;
    this.ids = new Map([...(this.model === first.model_id ? this.ids : []), ...items.map(({ uid, inference_id }) => [uid, inference_id] as const)]);
    this.model = first.model_id;
  }

  /** The erasure that was asked for of what was selected, and of how many that was. */
  erased = $state.raw<{ id: string; count: number } | null>(null);

  clear(): void {
    this.ids = new Map();
  }

  /** What was selected is being erased, and selected no longer. */
  erase(id: string): void {
    this.erased = { id, count: this.ids.size };
    this.clear();
  }

  /** What is true of these inferences alone. */
  get filter(): string {
    const uids = [...this.ids.keys()].map(quoteText).join(", ");
    return this.ids.size === 1 ? `uid = ${uids}` : `uid IN (${uids})`;
  }
}

export const selection = new Selection();
