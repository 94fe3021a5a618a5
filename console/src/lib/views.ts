/** Saved views: questions about a model under a name, as the API has them. */

import { change, get, getRevised, path } from "./api.ts";
import { readColumns, writeColumns } from "./columns.ts";
import { EMPTY_LINK, type Link, VIEWS } from "./router.svelte.ts";
import type { Schemas } from "./types.ts";

export type Shared = "private" | "project";

export type SavedView = Schemas["CheckedView"];

/** As many as there can be of one model. */
const MOST = 1000;

/** The views of a model, in order of their names. */
export async function askViews(model: string, signal: AbortSignal): Promise<SavedView[]> {
  const query = new URLSearchParams({ model_id: model, limit: String(MOST) });
  const { items } = await get<{ items: SavedView[] }>(`views?${query}`, signal);
  return items.toSorted((view, other) => nameView(view).localeCompare(nameView(other)));
}

export function askView(id: string, signal?: AbortSignal) {
  return getRevised<SavedView>(path("views", id), signal);
}

export function saveView(model: string, fields: Record<string, unknown>) {
  return change<SavedView>("POST", "views", { ...fields, model_id: model });
}

export function changeView(id: string, fields: Record<string, unknown>, revision: string | null) {
  return change<SavedView>("PATCH", path("views", id), fields, revision);
}

export function deleteView(id: string, revision: string | null) {
  return change<null>("DELETE", path("views", id), undefined, revision);
}

export function nameView(view: SavedView): string {
  return view.name ?? "erased";
}

/** The parts of a link that a view keeps. */
export function readQuestion({ filter, time, sort, view, columns }: Link): Record<string, unknown> {
  return { filter: filter || null, time: time || null, sort, view, columns: readColumns(columns) };
}

/** The link that a view leads to. */
export function findPlace(saved: SavedView): Link {
  return {
    ...EMPTY_LINK,
    model: saved.model_id,
    filter: saved.filter ?? "",
    time: saved.time ?? "",
    sort: saved.sort,
    view: VIEWS.find((view) => view === saved.view) ?? EMPTY_LINK.view,
    columns: writeColumns(saved.columns),
  };
}
