/** What a change is over: one model, the models of a project, or all. As text: `model:m`. */

import { showId } from "./format.ts";
import type { Model } from "./types.ts";

export type Extent = { kind: "model" | "project"; id: string } | { kind: "all"; id: "" };

export function readExtent(text: string): Extent | null {
  if (text === "all") return { kind: "all", id: "" };
  const [kind, ...rest] = text.split(":");
  const id = rest.join(":");
  return (kind === "model" || kind === "project") && id ? { kind, id } : null;
}

export function writeExtent({ kind, id }: Extent): string {
  return kind === "all" ? "all" : `${kind}:${id}`;
}

/** In a sentence: `of street-detector`. */
export function nameExtent({ kind, id }: Extent): string {
  if (kind === "all") return "all models";
  return kind === "project" ? `all models of the project ${showId(id)}` : showId(id);
}

export function listProjects(models: Model[]): string[] {
  const ids = models.map((model) => model.project_id).filter((id) => id !== null);
  return [...new Set(ids)].sort();
}
