/** The canonical form of JSON, in which documents are signed: the bytes that the store writes. */

export type Json = null | boolean | bigint | string | Json[] | { [name: string]: Json };

/** The bytes are not a signed document in canonical form; the message says why, as a sentence. */
export class NotSigned extends Error {}

const INTEGER = /^-?\d+$/;
const SHORT: Record<string, string> = {
  '"': '\\"',
  "\\": "\\\\",
  "\n": "\\n",
  "\r": "\\r",
  "\t": "\\t",
  "\b": "\\b",
  "\f": "\\f",
};

/** Reads JSON with its integers as they were written, of any size. Throws NotSigned. */
export function parseExact(text: string): Json {
  try {
    return JSON.parse(text, readMember as (name: string, value: unknown) => unknown) as Json;
  } catch (fault) {
    if (fault instanceof NotSigned) throw fault;
    throw new NotSigned("It is no JSON.");
  }
}

/** Called for each value, from the leaves up. `source`: the text of a number, if the browser gives it. */
function readMember(_: string, value: unknown, context?: { source?: string }): unknown {
  if (typeof value !== "number") return value;
  const source = context?.source ?? String(value);
  if (!INTEGER.test(source)) throw new NotSigned("A number in it is not an integer.");
  return BigInt(source);
}

/** Writes JSON with sorted names, no spaces, and ASCII alone. */
export function writeCanonical(value: Json): string {
  if (typeof value === "string") return quote(value);
  if (value === null || typeof value !== "object") return String(value);
  if (Array.isArray(value)) return `[${value.map(writeCanonical).join(",")}]`;
  const members = Object.entries(value).toSorted(([a], [b]) => compareCodePoints(a, b));
  return `{${members.map(([name, member]) => `${quote(name)}:${writeCanonical(member)}`).join(",")}}`;
}

function quote(text: string): string {
  return `"${text.replace(/["\\]|[^ -~]/g, escape)}"`;
}

function escape(unit: string): string {
  return SHORT[unit] ?? `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
}

/** By code points: JavaScript itself compares the units of UTF-16. */
function compareCodePoints(a: string, b: string): number {
  const [left, right] = [[...a], [...b]];
  for (const [at, letter] of left.entries()) {
    const other = right[at];
    if (other === undefined) return 1;
    const difference = (letter.codePointAt(0) ?? 0) - (other.codePointAt(0) ?? 0);
    if (difference) return difference;
  }
  return left.length - right.length;
}
