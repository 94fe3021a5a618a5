/** What may come next in a filter's text. The API alone says what is right. */

import { quoteText, writeEqual } from "./cql.ts";
import type { Queryable, Queryables } from "./types.ts";

interface Suggestion {
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
  boolean: ["= true", "= false", "IS NULL", "AND", "OR"],
  time: ["<", ">=", "BETWEEN", "IS NULL"],
};
const BEGINS = /(?:^|[\s(])([A-Za-z_"][\w."]*|)$/;
const AFTER_NAME = /([\w."]+)\s+([A-Za-z<>=]*)$/;
const AFTER_OPERATOR = /([\w."]+)\s*(?:<=|>=|<>|=|<|>|\bLIKE\b|\bIN\s*\((?:[^()]*,)?)\s*('[^']*|[\w.-]*)$/i;
/** A comparison that is whole, or brackets that are closed, and what is typed of the next word. */
const AFTER_COMPARISON = new RegExp(
  String.raw`(?:(?:<=|>=|<>|[=<>]|\bLIKE\b)\s*(?:'(?:[^']|'')*'|[\w.+-]+)|\bIS(?:\s+NOT)?\s+NULL|` +
    String.raw`\bBETWEEN\s+\S+\s+AND\s+\S+|\))\s+([A-Za-z]*)$`,
  "i",
);
const JOINS = new Set(["and", "or", "not"]);

export function findKind(queryable: Queryable): string {
  const schema = queryable.anyOf?.[0] ?? queryable.items ?? queryable;
  if (schema.format === "date-time") return "time";
  return schema.type === "integer" ? "number" : (schema.type ?? "");
}

/** What finds a value of a name; of `label`, that of a prediction. */
export function writeCondition(name: string, value: unknown, queryable?: Queryable): string {
  if (name === "label") return value === null ? "NOT prediction()" : `prediction(label = ${quoteText(String(value))})`;
  const kind = queryable ? findKind(queryable) : "";
  return writeEqual(queryable?.["x-cql2-text"] ?? name, value, { boolean: "bool", time: "timestamp" }[kind] ?? kind);
}

export function complete(before: string, known: Queryables): Completion {
  const names = isInPrediction(before) ? known.$defs.prediction.properties : known.properties;
  const joined = AFTER_COMPARISON.exec(before);
  if (joined) return completeWord(before, joined[1] ?? "", findDepth(before) > 0 ? ["AND", "OR", ")"] : ["AND", "OR"]);
  const between = /\bBETWEEN\s+\S+\s+([A-Za-z]*)$/i.exec(before);
  if (between) return completeWord(before, between[1] ?? "", ["AND"]);
  const value = AFTER_OPERATOR.exec(before);
  if (value) return completeValue(before, value[2] ?? "", findByText(names, value[1] ?? ""));
  const operator = AFTER_NAME.exec(before);
  const named = operator && findByText(names, operator[1] ?? "");
  if (named) return completeWord(before, operator[2] ?? "", OPERATORS[findKind(named)] ?? OPERATORS.string ?? []);
  const word = BEGINS.exec(before)?.[1];
  if (word === undefined) return { from: before.length, suggestions: [] };
  return { from: before.length - word.length, suggestions: listNames(names, word) };
}

function isInPrediction(before: string): boolean {
  const opened = Math.max(before.lastIndexOf("prediction("), before.lastIndexOf("count_predictions("));
  return opened >= 0 && findDepth(before.slice(opened)) > 0;
}

/** How many brackets are open at the end. */
function findDepth(text: string): number {
  return [...text.replace(/'[^']*'/g, "")].reduce((depth, letter) => depth + (letter === "(" ? 1 : letter === ")" ? -1 : 0), 0);
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

/** Of some words, those that begin as what is typed. */
function completeWord(before: string, typed: string, words: string[]): Completion {
  const suggestions = words
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

/** A filter of this model's own words, as an example: a metadata key, and a label that it gave. */
export function writeExample(known: Queryables | null, label: string): string {
  const keys = Object.values(known?.properties ?? {}).filter((key) => key.examples?.length && !/[.[]/.test(key.title));
  const isOf = (type: string) => (key: Queryable) => key["x-types-seen"]?.[0]?.type === type;
  const [number, text] = [keys.find(isOf("int")), keys.find(isOf("string"))];
  const conditions = [
    number ? `${number["x-cql2-text"]} > ${number.examples?.at(-1)}` : text ? writeEqual(text["x-cql2-text"], text.examples?.[0]) : "",
    label ? `prediction(${writeEqual("label", label)} AND score > 0.5)` : "",
  ];
  return conditions.filter(Boolean).join(" AND ") || "received_at > now() - duration('PT1H')";
}
