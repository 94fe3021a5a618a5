/** What may be chosen of an export: the values that the OpenAPI lists, with what each is for. */

import { get, toAddress } from "./api.ts";

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

export async function askExportChoices(signal: AbortSignal): Promise<ExportChoices> {
  const { properties } = (await get<OpenApi>(toAddress("../openapi.json"), signal)).components.schemas.ExportRequest;
  return { formats: listValues(properties.format), blobs: listValues(properties.blobs) };
}

function listValues(schema?: Schema): string[] {
  return schema?.enum ?? schema?.anyOf?.flatMap(listValues) ?? [];
}
