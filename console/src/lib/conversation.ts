/** The messages to a model and its answers, from the forms that clients send. */

export interface Message {
  role: string;
  text: string;
}

const MOST_WORDS = 100_000;
/** Several messages as the proxy stores them: each after its role, with a blank line between. */
const ROLE = "(?:system|developer|user|assistant|tool|function|unknown): ";
const TURN = new RegExp(String.raw`\n\n(?=${ROLE})`);

/** Reads a request; a form that is not known is shown as it came. */
export function readConversation(text: string): Message[] {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return new RegExp(`^${ROLE}`).test(text) ? text.split(TURN).map(readTurn) : [say("input", text)];
  }
  if (!isRecord(body)) return [say("input", typeof body === "string" ? body : text)];
  if (Array.isArray(body.messages)) return body.messages.filter(isRecord).map(readMessage);
  for (const name of ["prompt", "question", "inputs", "text", "sequence"]) {
    const text = body[name];
    if (typeof text === "string") {
      const context = typeof body.context === "string" ? [say("context", body.context)] : [];
      return [...context, say("input", text)];
    }
  }
  return [say("input", text)];
}

function readTurn(turn: string): Message {
  const end = turn.indexOf(": ");
  return say(turn.slice(0, end), turn.slice(end + 2));
}

function readMessage(message: Record<string, unknown>): Message {
  const { role, content } = message;
  const text = Array.isArray(content) ? content.map(readPart).join("\n") : String(content ?? "");
  const calls = message.tool_calls ? JSON.stringify(message.tool_calls, null, 2) : "";
  return say(String(role ?? "?"), [text, calls].filter(Boolean).join("\n"));
}

function readPart(part: unknown): string {
  if (!isRecord(part)) return String(part);
  return typeof part.text === "string" ? part.text : `[${String(part.type ?? "part")}]`;
}

function say(role: string, text: string): Message {
  return { role: role.slice(0, 40), text: text.slice(0, MOST_WORDS) };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
