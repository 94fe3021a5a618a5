/** The inferences of one model that the reader has selected. */

import { quoteText } from "./cql.ts";

interface Pickable {
  uid: string;
  model_id: string;
  inference_id: string;
}

class Selection {
  model = $state("");
  /** Their ids, by uid. */
  ids = $state.raw<ReadonlyMap<string, string>>(new Map());

  /** Selects an inference, or leaves it out; those of another model are forgotten. */
  toggle({ uid, model_id, inference_id }: Pickable): void {
    const ids = new Map(this.model === model_id ? this.ids : []);
    if (!ids.delete(uid)) ids.set(uid, inference_id);
    this.model = model_id;
    this.ids = ids;
  }

  /** Selects all of these inferences of one model too. */
  add(items: Pickable[]): void {
    const [first] = items;
    if (!first) return;
    this.ids = new Map([...(this.model === first.model_id ? this.ids : []), ...items.map(({ uid, inference_id }) => [uid, inference_id] as const)]);
    this.model = first.model_id;
  }

  clear(): void {
    this.ids = new Map();
  }

  /** What is true of these inferences alone. */
  get filter(): string {
    const uids = [...this.ids.keys()].map(quoteText).join(", ");
    return this.ids.size === 1 ? `uid = ${uids}` : `uid IN (${uids})`;
  }
}

export const selection = new Selection();
