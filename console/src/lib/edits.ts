/** Edits of an inference's metadata. */

import { change, getRevised, path, type Revised } from "./api.ts";
import type { Inference, MetadataItem } from "./types.ts";

export const TYPES = ["string", "int", "float", "bool", "timestamp", "json"];

/** An item that is being edited. `before`: what it was, if it was there. */
export interface Draft {
  key: string;
  type: string;
  value: string;
  before: MetadataItem | null;
  /** It goes when the drafts are saved. */
  isRemoved?: boolean;
}

export function toDraft(item: MetadataItem): Draft {
  return { key: item.key, type: item.type, value: item.value ?? "", before: item };
}

export function isChanged({ type, value, before, isRemoved }: Draft): boolean {
  return isRemoved === true || before === null || type !== before.type || value !== (before.value ?? "");
}

/** The drafts over items that somebody else has changed meanwhile: what the reader typed stays. */
export function mergeDrafts(drafts: Draft[], items: MetadataItem[]): Draft[] {
  const typed = new Map(drafts.filter(isChanged).map((draft) => [draft.key, draft]));
  const merged = items.map((item) => {
    const draft = typed.get(item.key);
    typed.delete(item.key);
    return draft ? { ...draft, before: item } : toDraft(item);
  });
  return [...merged, ...[...typed.values()].map((draft) => ({ ...draft, before: null }))];
}

export function askMetadata(inference: Inference, signal: AbortSignal): Promise<Revised<Inference>> {
  return getRevised(`${where(inference)}?include=metadata`, signal);
}

/** Saves what was changed. `revision`: the one that the reader has seen; the API refuses if it is another by now. */
export async function saveMetadata(inference: Inference, drafts: Draft[], revision: string | null): Promise<Inference> {
  const changed = drafts.filter((draft) => isChanged(draft) && !draft.isRemoved);
  const metadata = changed.map(({ key, type, value }) => ({ key: key.trim(), type, value }));
  const remove = drafts.filter((draft) => draft.isRemoved).map(({ key }) => key);
  return (await change<Inference>("POST", `${where(inference)}/metadata`, { metadata, remove }, revision)).data;
}

function where({ model_id, uid }: Inference): string {
  return path("models", model_id, "inferences", `uid:${uid}`);
}
