/** Text that people type. */

/** The lines that are not empty, each once. */
export function splitLines(text: string): string[] {
  return [...new Set(text.split("\n").map((line) => line.trim()).filter(Boolean))];
}

/** The whole number in a text such as `1,300`; null: it is none. */
export function readCount(text: string): number | null {
  const digits = text.trim().replaceAll(/[,.\s'’]/g, "");
  return /^\d{1,15}$/.test(digits) ? Number(digits) : null;
}

/** Types by key, from lines such as `reviewed: bool`. */
export function readTypes(text: string): Record<string, string> {
  const pairs = splitLines(text).map((line): [string, string] => {
    const at = line.lastIndexOf(":");
    return at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
  return Object.fromEntries(pairs);
}

/** Such lines of types by key. */
export function writeTypes(types: Record<string, string>): string {
  return Object.entries(types)
    .map(([key, type]) => `${key}: ${type}`)
    .join("\n");
}
