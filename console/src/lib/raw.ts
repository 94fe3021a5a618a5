/** Stored bytes as text that a page can bear. */

export interface RawText {
  text: string;
  size: number;
  isCut: boolean;
}

const MOST = 200_000;

export async function readRaw(blob: Blob): Promise<RawText> {
  const text = await blob.slice(0, MOST).text();
  const isCut = blob.size > MOST;
  return { text: isCut ? text : indent(text), size: blob.size, isCut };
}

function indent(text: string): string {
  try {
    return indentJson(text);
  } catch {
    return text;
  }
}

/** JSON on several lines. Numbers stay as they were written: `JSON.parse` would round them. */
function indentJson(text: string): string {
  JSON.parse(text);
  let depth = 0;
  const line = (at: number) => `\n${"  ".repeat(at)}`;
  return text.replace(/"(?:[^"\\]|\\.)*"|\[\s*\]|\{\s*\}|[[{]|[\]}]|[,:]|\s+/g, (token) => {
    if (/^\s/.test(token)) return "";
    if (token === "[" || token === "{") return token + line((depth += 1));
    if (token === "]" || token === "}") return line((depth -= 1)) + token;
    if (token === ",") return token + line(depth);
    return token === ":" ? ": " : token;
  });
}
