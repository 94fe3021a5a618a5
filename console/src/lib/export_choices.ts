/** What may be chosen of an export: the values that the OpenAPI lists, with what each is for. */

import { get } from "./api.ts";

export interface ExportChoices {
  formats: string[];
  /** What the parts have of the blobs; empty: the API has no such choice. */
  blobs: string[];
}

interface Schema {
  enum?: string[];
  anyOf?: Schema[];
}

interface OpenApi {
  components: { schemas: { ExportRequest: { properties: Record<string, Schema> } } };
}

/** A value that is not here is shown as it is. */
export const FORMAT_WORDS: Record<string, string> = {
  parquet: "Parquet, for pandas, polars, DuckDB and Spark",
  arrow: "Arrow, a stream of typed columns",
  csv: "CSV, for spreadsheets",
  jsonl: "JSON lines, as the API shows inferences",
  webdataset: "WebDataset, tar files to train from",
  chariot: "Chariot, JSON lines with the names of its events",
};

export const BLOB_WORDS: Record<string, string> = {
  none: "Nothing",
  links: "Links: whoever has the file can read them",
  copy: "Copies",
};

export async function askExportChoices(signal: AbortSignal): Promise<ExportChoices> {
  const { properties } = (await get<OpenApi>("../openapi.json", signal)).components.schemas.ExportRequest;
  return { formats: listValues(properties.format), blobs: listValues(properties.blobs) };
}

function listValues(schema?: Schema): string[] {
  return schema?.enum ?? schema?.anyOf?.flatMap(listValues) ?? [];
}
