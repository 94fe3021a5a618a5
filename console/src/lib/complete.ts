/** What may come next in a filter's text. The API alone says what is right. */

import { quoteText } from "./cql.ts";
import type { Queryable, Queryables } from "./types.ts";

export interface Suggestion {
  text: string;
  /** Of the name, its type; of a value, nothing. */
  kind: string;
  about: string;
}

export interface Completion {
  /** Where the text begins that a suggestion replaces. */
  from: number;
  suggestions: Suggestion[];
  /** Whose values the API may know more of: those that begin so. */
  more?: { name: string; prefix: string };
}

const MOST = 12;
const OPERATORS: Record<string, string[]> = {
  number: ["=", "<", "<=", ">", ">=", "<>", "BETWEEN", "IN (", "IS NULL"],
  string: ["=", "<>", "LIKE", "IN (", "IS NULL"],
  boolean: ["= true", "= false", "IS NULL"],
  time: ["<", ">=", "BETWEEN", "IS NULL"],
};
const BEGINS = /(?:^|[\s(])([A-Za-z_"][\w."]*|)$/;
const AFTER_NAME = /([\w."]+)\s+([A-Za-z<>=]*)$/;
const AFTER_OPERATOR = /([\w."]+)\s*(?:<=|>=|<>|=|<|>|\bLIKE\b|\bIN\s*\((?:[^()]*,)?)\s*('[^']*|[\w.-]*)$/i;
const JOINS = new Set(["and", "or", "not"]);

export function findKind(queryable: Queryable): string {
  const schema = queryable.anyOf?.[0] ?? queryable.items ?? queryable;
  if (schema.format === "date-time") return "time";
  return schema.type === "integer" ? "number" : (schema.type ?? "");
}

export function complete(before: string, known: Queryables): Completion {
  const names = isInPrediction(before) ? known.$defs.prediction.properties : known.properties;
  const value = AFTER_OPERATOR.exec(before);
  if (value) return completeValue(before, value[2] ?? "", findByText(names, value[1] ?? ""));
  const operator = AFTER_NAME.exec(before);
  const named = operator && findByText(names, operator[1] ?? "");
  if (named) return completeOperator(before, operator[2] ?? "", findKind(named));
  const word = BEGINS.exec(before)?.[1] ?? "";
  return { from: before.length - word.length, suggestions: listNames(names, word) };
}

function isInPrediction(before: string): boolean {
  const opened = Math.max(before.lastIndexOf("prediction("), before.lastIndexOf("count_predictions("));
  if (opened < 0) return false;
  let depth = 0;
  for (const letter of before.slice(opened)) depth += letter === "(" ? 1 : letter === ")" ? -1 : 0;
  return depth > 0;
}

function findByText(names: Record<string, Queryable>, text: string): Queryable | undefined {
  return JOINS.has(text.toLowerCase())
    ? undefined
    : Object.entries(names).find(([name, queryable]) => name === text || queryable["x-cql2-text"] === text)?.[1];
}

function completeValue(before: string, typed: string, queryable: Queryable | undefined): Completion {
  const examples = (queryable?.examples ?? []).map((each) =>
    typeof each === "string" ? quoteText(each) : String(each),
  );
  if (queryable && findKind(queryable) === "boolean" && !examples.length) examples.push("true", "false");
  const wanted = typed.replace(/^'/, "").toLowerCase();
  const suggestions = examples
    .filter((text) => text.toLowerCase().includes(wanted) && text !== typed)
    .map((text) => ({ text, kind: "", about: "" }));
  const from = before.length - typed.length;
  const isText = queryable && findKind(queryable) === "string";
  const more = isText && { more: { name: queryable.title, prefix: typed.replace(/^'/, "") } };
  return { from, suggestions: suggestions.slice(0, MOST), ...more };
}

function completeOperator(before: string, typed: string, kind: string): Completion {
  const suggestions = (OPERATORS[kind] ?? OPERATORS.string ?? [])
    .filter((text) => text.startsWith(typed.toUpperCase()) && text !== typed)
    .map((text) => ({ text, kind: "", about: "" }));
  return { from: before.length - typed.length, suggestions };
}

function listNames(names: Record<string, Queryable>, word: string): Suggestion[] {
  const wanted = word.replaceAll('"', "").toLowerCase();
  const rank = (name: string) => (name.toLowerCase().startsWith(wanted) ? 0 : 1);
  return Object.entries(names)
    .filter(([name]) => name.toLowerCase().includes(wanted))
    .toSorted(([a, x], [b, y]) => rank(a) - rank(b) || weigh(x) - weigh(y))
    .map(([name, queryable]) => suggestName(name, queryable))
    .filter(({ text }) => text !== word)
    .slice(0, MOST);
}

/** What clients sent comes before what every inference has. */
function weigh(queryable: Queryable): number {
  return queryable["x-types-seen"] ? 0 : 1;
}

function suggestName(name: string, queryable: Queryable): Suggestion {
  const types = queryable["x-types-seen"]?.map((seen) => seen.type).join(", ");
  const about = queryable["x-types-seen"] ? "metadata" : queryable.description;
  return { text: queryable["x-cql2-text"] ?? name, kind: types ?? findKind(queryable), about };
}
