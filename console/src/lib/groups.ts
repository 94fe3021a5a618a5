/** The inferences of a filter by the values of a name: which there are, and the first of each. */

import { addCondition, quoteText, writeEqual } from "./cql.ts";
import { findKind } from "./complete.ts";
import type { Link } from "./link.ts";
import { askAggregate } from "./questions.ts";
import type { Queryables } from "./types.ts";

export interface Group {
  value: unknown;
  count: number;
  /** What finds it alone. */
  filter: string;
}

const MOST = 50;

/** The groups with the most inferences, and how many others there are at least. */
export async function askGroups(link: Link, known: Queryables, signal: AbortSignal): Promise<Group[]> {
  const body = { group_by: [link.group], measures: [{ function: "count", as: "count" }], limit: MOST };
  const { groups } = await askAggregate(link, body, signal);
  return groups
    .map(({ key, measures }) => {
      const value: unknown = Object.values(key)[0] ?? null;
      return { value, count: Number(measures.count), filter: addCondition(link.filter, writeCondition(link.group, value, known)) };
    })
    .toSorted((a, b) => b.count - a.count);
}

function writeCondition(name: string, value: unknown, known: Queryables): string {
  if (name === "label") return value === null ? "NOT prediction()" : `prediction(label = ${quoteText(String(value))})`;
  const queryable = known.properties[name];
  const kind = queryable ? findKind(queryable) : "";
  return writeEqual(queryable?.["x-cql2-text"] ?? name, value, { boolean: "bool", time: "timestamp" }[kind] ?? kind);
}
