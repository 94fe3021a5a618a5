/** Values of a text field that begin with what was typed, as suggestions for a filter. */

import { quoteText } from "./cql.ts";
import { NOWHERE } from "./link.ts";
import { askAggregate } from "./questions.ts";

const MOST = 12;

export async function askValues(model: string, name: string, prefix: string, signal: AbortSignal): Promise<string[]> {
  const measure = { function: "distinct", of: name, prefix, limit: MOST, as: "found" };
  const link = { ...NOWHERE, model };
  const { groups } = await askAggregate(link, { measures: [measure] }, signal);
  const found = groups[0]?.measures.found as { values: unknown[] } | undefined;
  return (found?.values ?? []).map((value) => quoteText(String(value)));
}
