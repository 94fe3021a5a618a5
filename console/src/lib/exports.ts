/** Exports: how the API shows them, and how they are asked for. */

import type { Schemas } from "./types.ts";

export type Export = Schemas["Export"];
export type Part = Schemas["ExportPart"];

export const STATES: Record<string, string> = {
  pending: "Requested. The retention service starts it within seconds.",
  listing: "Listing what matches.",
  writing: "Writing the parts.",
  done: "All parts are written.",
  stale: "An erasure deleted some of the parts. Start it again to get the rest.",
  failed: "The export failed.",
  cancelling: "Its parts are being deleted.",
  cancelled: "It was cancelled; its parts are deleted.",
  expired: "It expired; its parts are deleted.",
};

/** Whether the parts are deleted, or being deleted: nothing can be fetched any more. */
export function isOver(job: Export): boolean {
  return ["cancelling", "cancelled", "expired"].includes(job.state);
}

export const PART_STATES: Record<string, string> = {
  listed: "Not written yet.",
  writing: "It is being written.",
  written: "It is there.",
  stale: "An erasure deleted it, because it named something erased.",
  removed: "Nothing is left in it, or the export is over.",
};

/** A value that is not here is shown as it is. */
export const FORMAT_WORDS: Record<string, string> = {
  parquet: "Parquet, for pandas, polars, DuckDB and Spark",
  arrow: "Arrow, a stream of typed columns",
  csv: "CSV, for spreadsheets",
  jsonl: "JSON Lines, as the API returns inferences",
  webdataset: "WebDataset, tar files for training",
  chariot: "Chariot, JSON Lines with the names that Chariot uses",
};

/** The formats that only the client writes. */
export const DATASETS: Record<string, string> = {
  coco: "COCO, boxes and outlines in one JSON",
  yolo: "YOLO, a text file for each picture",
  fiftyone: "FiftyOne, to open in its app",
  huggingface: "Hugging Face, for datasets.load_dataset",
};

export const BLOB_WORDS: Record<string, string> = {
  none: "Nothing",
  links: "Links: whoever has the file can read them",
  copy: "Copies",
};

/** How long the parts stay; empty: as the store has it. */
export const PERIODS: [period: string, title: string][] = [
  ["", "The store's default"],
  ["P1D", "1 day"],
  ["P7D", "7 days"],
  ["P30D", "30 days"],
];

export interface Draft {
  format: string;
  include: string[];
  /** Empty: the default of the format. */
  blobs: string;
  period: string;
}

const OVER = ["cancelled", "expired"];
const WRITTEN = ["done", "stale", "failed"];
const SOON_MS = 1500;

/** After how long its progress is asked for again; null: nothing more happens to it for now. */
export function findPause({ state, retry_at }: Export): number | null {
  return OVER.includes(state) || (WRITTEN.includes(state) && !retry_at) ? null : SOON_MS;
}

/** Whether its parts are there, or are being written. */
export function mayCancel({ state }: Export): boolean {
  return !OVER.includes(state) && state !== "cancelling";
}

/** Whether its question can be asked again, as another export. */
export function mayRestart({ state, erased_by }: Export): boolean {
  return [...WRITTEN, ...OVER].includes(state) && !erased_by;
}

/** What the API takes, of what matches `conditions`. The number of it was shown, and that confirms it. */
export function buildExport(conditions: Record<string, unknown>, draft: Draft): Record<string, unknown> {
  const { format, include, blobs, period } = draft;
  return { ...conditions, format, include, ...(blobs && { blobs }), ...(period && { expires_in: period }), confirm: true };
}

/** What it is of, in words. */
export function writeWhat({ filter, erased_by }: Export): string {
  return filter ?? (erased_by ? "a filter whose values an erasure took" : "everything");
}
