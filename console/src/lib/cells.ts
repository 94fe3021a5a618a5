/** Any value of the API as the text of a table's cell. */

import { writeCount } from "./numbers.ts";
import { writeTime } from "./times.ts";

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;
const MOST_LETTERS = 300;

export function writeCell(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return writeCount(value);
  if (typeof value === "string") return TIME.test(value) ? writeTime(value) : value.slice(0, MOST_LETTERS);
  if (Array.isArray(value)) return value.map(writeCell).join(", ").slice(0, MOST_LETTERS);
  return writeFields(value as Record<string, unknown>).slice(0, MOST_LETTERS);
}

function writeFields(value: Record<string, unknown>): string {
  return Object.entries(value)
    .map(([name, each]) => `${name}: ${writeCell(each)}`)
    .join(", ");
}
