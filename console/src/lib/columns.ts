/** The columns of the table: which there may be, which are shown, and what their cells say. */

import { showId, writeBytes, writeCell, writeMilliseconds, writeScore } from "./format.ts";
import { findKind } from "./complete.ts";
import { readKey } from "./metadata.ts";
import type { Inference, Queryables } from "./types.ts";

export interface Column {
  title: string;
  /** What the API sorts by; empty: it does not. */
  sort: string;
  isNumber: boolean;
  write: (inference: Inference) => string;
}

interface Field {
  title: string;
  /** Where the API calls it otherwise. */
  property?: string;
  isNumber?: boolean;
  write?: (value: number | null) => string;
}

const MS = { isNumber: true, write: writeMilliseconds };
const FIELDS = {
  inference_id: { title: "ID", write: showId as Field["write"] },
  received_at: { title: "Received" },
  top_label: { title: "Top label" },
  top_score: { title: "Score", isNumber: true, write: (score) => (score === null ? "" : writeScore(score)) },
  prediction_count: { title: "Predictions", isNumber: true },
  model_ms: { title: "Model time", ...MS },
  pre_ms: { title: "Before the model", ...MS },
  post_ms: { title: "Until captured", ...MS },
  indexed_at: { title: "Indexed" },
  ok: { title: "Worked" },
  error: { title: "Error" },
  http_status: { title: "HTTP status", isNumber: true },
  grpc_code: { title: "gRPC code", isNumber: true },
  model_version: { title: "Model version" },
  protocol: { title: "Protocol" },
  trace_id: { title: "Trace" },
  batch_index: { title: "Position in the batch", isNumber: true },
  batch_size: { title: "Size of the batch", isNumber: true },
  width: { title: "Width", isNumber: true },
  height: { title: "Height", isNumber: true },
  data_size_bytes: { title: "Size of the input", property: "data_size", isNumber: true, write: writeBytes },
  data_content_type: { title: "Type of the input" },
  data_hash: { title: "Hash of the input" },
  problem: { title: "Problem" },
  flags: { title: "Flags" },
  uid: { title: "UID" },
} satisfies Partial<Record<keyof Inference, Field>>;

const USUAL = ["inference_id", "received_at", "top_label", "top_score", "prediction_count", "model_ms"];
const USUAL_KEYS = 8;
const METADATA = "metadata.";
/** As many as a saved view keeps. */
export const MOST_COLUMNS = 64;

/** The names in a link; empty: the usual columns. */
export function readColumns(text: string): string[] {
  return [...new Set(text.split(",").map(decode).filter(Boolean))].slice(0, MOST_COLUMNS);
}

export function writeColumns(names: string[]): string {
  return names.map((name) => name.replace(/[%,]/g, encodeURIComponent)).join(",");
}

/** The columns of a link, else the usual ones: some fields, and keys that the inferences have. */
export function chooseColumns(text: string, items: Inference[]): string[] {
  const chosen = readColumns(text);
  return chosen.length ? chosen : [...USUAL, ...listKeys(items).slice(0, USUAL_KEYS).map((key) => METADATA + key)];
}

/** All that one may choose. */
export function listColumns(known: Queryables | null, items: Inference[]): string[] {
  const properties = Object.values(known?.properties ?? {});
  const seen = properties.filter((property) => property["x-types-seen"]).map((property) => property.title);
  const keys = new Set([...listKeys(items), ...seen]);
  return [...Object.keys(FIELDS), ...[...keys].map((key) => METADATA + key)];
}

export function describeColumn(name: string, known: Queryables | null): Column {
  if (!name.startsWith(METADATA)) return describeField(name, known);
  const key = name.slice(METADATA.length);
  const [sort = "", property] = findProperty([name, key], known) ?? [];
  return {
    title: key,
    sort: property && findKind(property) ? sort : "",
    isNumber: property !== undefined && findKind(property) === "number",
    write: ({ metadata }) => readKey(metadata ?? [], key),
  };
}

/** A field that there is not has nothing in its cells. */
function describeField(name: string, known: Queryables | null): Column {
  const field: Field | undefined = Object.hasOwn(FIELDS, name) ? FIELDS[name as keyof typeof FIELDS] : undefined;
  if (!field) return { title: name, sort: "", isNumber: false, write: () => "" };
  const property = field.property ?? name;
  const { write = writeCell as (value: never) => string } = field;
  return {
    title: field.title,
    sort: findProperty([`inference.${property}`, property], known)?.[0] ?? "",
    isNumber: field.isNumber ?? false,
    write: (inference) => write(inference[name as keyof Inference] as never),
  };
}

/** The first of some names that a filter and a sort may use, with what the API says of it. */
function findProperty(names: string[], known: Queryables | null) {
  return names.map((name) => [name, known?.properties[name]] as const).find(([, property]) => property);
}

function listKeys(items: Inference[]): string[] {
  return [...new Set(items.flatMap((each) => each.metadata?.map((item) => item.key) ?? []))];
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
