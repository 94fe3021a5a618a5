/** The models that one may see, for every page. */

import { get } from "./api.ts";
import { Loaded } from "./loaded.svelte.ts";
import type { Model } from "./types.ts";

const MOST = 1000;

class Models {
  readonly answer = new Loaded<{ items: Model[]; next: string | null }>();

  ask(): void {
    this.answer.ask((signal) => get(`models?limit=${MOST}`, signal));
  }

  find(id: string): Model | null {
    return this.answer.data?.items.find((model) => model.model_id === id) ?? null;
  }
}

export const models = new Models();
