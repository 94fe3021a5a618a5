/** Metadata of an inference, with the tags and notes of people. */

import { change, path } from "./api.ts";
import { writeCell } from "./format.ts";
import { askQueryables } from "./questions.ts";
import type { Inference, MetadataItem, Schemas } from "./types.ts";

/** Types that a metadata value may be compared as. */
export const TYPES = ["string", "int", "float", "bool", "timestamp"] as const;

/** The value of a key, or of a path into a JSON value: `camera_position.angle`, `tags[]`. */
export function readKey(items: MetadataItem[], key: string): string {
  const item = items.find((item) => item.key === key);
  if (item && key === "tags") return readTags([item]).join(", ");
  if (item) return item.value ?? "";
  const around = items.find((item) => key.startsWith(`${item.key}.`) || key.startsWith(`${item.key}[`));
  return around ? writeCell(readPath(parse(around.value), key.slice(around.key.length))) : "";
}

function readPath(value: unknown, path: string): unknown {
  const steps = path.match(/[^.[\]]+/g) ?? [];
  return steps.reduce<unknown>((within, step) => {
    return Array.isArray(within) ? within.map((element) => readMember(element, step)) : readMember(within, step);
  }, value);
}

function readMember(value: unknown, name: string): unknown {
  const isObject = typeof value === "object" && value !== null && Object.hasOwn(value, name);
  return isObject ? (value as Record<string, unknown>)[name] : undefined;
}

function parse(text: string | null): unknown {
  try {
    return JSON.parse(text ?? "");
  } catch {
    return undefined;
  }
}

export type Tagged = Schemas["TaggedInferences"];
export const LONGEST_TAG = 100;

/** The tags among metadata items: a text is one, an array has several. */
export function readTags(items: MetadataItem[] | undefined): string[] {
  const value = items?.find((item) => item.key === "tags")?.value;
  if (!value) return [];
  try {
    const tags: unknown = JSON.parse(value);
    return Array.isArray(tags) ? tags.filter((tag) => typeof tag === "string") : [value];
  } catch {
    return [value];
  }
}

/** Tags that inferences of a model have, for completion. A question for their values would be refused if there are none. */
export async function askTags(model: string, signal: AbortSignal): Promise<string[]> {
  const { properties } = await askQueryables(model, signal);
  return (properties["tags[]"]?.examples ?? []).map(String);
}

export async function changeTags(model: string, uids: string[], add: string[], remove: string[]): Promise<Tagged> {
  const body = { add, remove, inference_ids: uids.map((uid) => `uid:${uid}`) };
  return (await change<Tagged>("POST", path("models", model, "inferences", "tags"), body)).data;
}

export async function saveNote({ model_id, uid }: Inference, text: string): Promise<Inference> {
  const note = text.trim();
  const body = note ? { metadata: [{ key: "note", type: "string", value: note }] } : { remove: ["note"] };
  return (await change<Inference>("POST", path("models", model_id, "inferences", `uid:${uid}`, "metadata"), body)).data;
}

/** What became of it, in a sentence. */
export function describeTagged({ changed, unchanged, missing, refused, remaining }: Tagged): string {
  const rest = missing.length + refused.length;
  const kept = unchanged ? `, ${unchanged} unchanged` : "";
  const left = remaining.length ? `, ${remaining.length} not done in time: send it again` : "";
  return `${changed} changed${kept}${left}${rest ? `, ${rest} refused${refused[0] ? `: ${refused[0].detail}` : ""}` : ""}`;
}
