/** Writes conditions in CQL2 text. The API alone reads it. */

const PLAIN_NAME = /^[A-Za-z_][A-Za-z0-9_.]*$/;
const WORDS = new Set(["and", "or", "not", "in", "like", "between", "is", "null", "true", "false"]);

export function quoteName(name: string): string {
  if (PLAIN_NAME.test(name) && !WORDS.has(name.toLowerCase())) return name;
  return `"${name.replaceAll('"', '""')}"`;
}

export function quoteText(text: string): string {
  return `'${text.replaceAll("'", "''")}'`;
}

/** A value as a filter writes it, by the type that it was sent with. */
function writeValue(value: unknown, type = "string"): string {
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = String(value);
  const isNumber = type === "int" || type === "float" || type === "number";
  if (isNumber && text.trim() !== "" && Number.isFinite(Number(text))) return text;
  if (type === "bool" && /^(true|false)$/i.test(text)) return text.toLowerCase();
  if (type === "timestamp") return writeTimestamp(text);
  return quoteText(text);
}

function writeTimestamp(text: string): string {
  const at = Date.parse(text);
  return Number.isNaN(at) ? quoteText(text) : `TIMESTAMP('${new Date(at).toISOString()}')`;
}

export function writeEqual(name: string, value: unknown, type?: string): string {
  if (value === null) return `${name} IS NULL`;
  return `${name} = ${writeValue(value, type)}`;
}

/** A filter that also asks for one more condition. */
export function addCondition(filter: string, condition: string): string {
  const before = filter.trim();
  if (!before) return condition;
  if (before.includes(condition)) return before;
  return /\bor\b/i.test(before) ? `(${before}) AND ${condition}` : `${before} AND ${condition}`;
}
