/** Metadata of an inference. */

import { writeCell } from "./cells.ts";
import { readTags } from "./tags.ts";
import type { MetadataItem } from "./types.ts";

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
