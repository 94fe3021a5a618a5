/** The API's answers. `npm run types` makes types/ from docs/reference/openapi.json. */

import type { components } from "../../types/schema";

export type Schemas = components["schemas"];
export type Model = Schemas["Registration"];
export type MetadataItem = Schemas["MetadataEntry"];
export type Prediction = Schemas["Prediction"];
/** With its metadata as items, as every question here asks for them. */
export type Inference = Omit<Schemas["Inference"], "metadata"> & { metadata?: MetadataItem[] };
export type InferencePage = Omit<Schemas["InferencePage"], "items"> & { items: Inference[] };
export type Group = Omit<Schemas["Group"], "key"> & { key: Record<string, string | null> };
export type Aggregate = Omit<Schemas["Aggregate"], "groups"> & { groups: Group[] };
export type DecidedBy = Schemas["DecidedBy"];
export type Retention = Schemas["RetentionExplanation"];

export interface Queryable {
  title: string;
  description: string;
  type?: string;
  format?: string;
  items?: { type?: string; format?: string };
  anyOf?: { type?: string; format?: string }[];
  examples?: (string | number | boolean)[];
  "x-cql2-text": string;
  "x-types-seen"?: { type: string; count: number }[];
}

export interface Queryables {
  properties: Record<string, Queryable>;
  $defs: { prediction: { properties: Record<string, Queryable> } };
}

export type Drawing = Schemas["Drawing"];
export type Caller = Schemas["Caller"];
