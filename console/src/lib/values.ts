/** Values of a text field that begin with what was typed, as suggestions for a filter. */

import { quoteText } from "./cql.ts";
import { EMPTY_LINK } from "./link.ts";
import { askAggregate } from "./questions.ts";

const MOST = 12;

export async function askValues(model: string, name: string, prefix: string, signal: AbortSignal): Promise<string[]> {
  const measure = { function: "distinct", of: name, prefix, limit: MOST, as: "result" };
  const link = { ...EMPTY_LINK, model };
  const { groups } = await askAggregate(link, { measures: [measure] }, signal);
  const result = groups[0]?.measures.result as { values: unknown[] } | undefined;
  return (result?.values ?? []).map((value) => quoteText(String(value)));
}
