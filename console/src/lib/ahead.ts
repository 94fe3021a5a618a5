/** Inputs that are asked for before they are looked at, so that the next picture is there when it is wanted. */

import { getBlob } from "./api.ts";

const MOST = 2;
const waiting = new Map<string, Promise<Blob>>();

export function askAhead(path: string): void {
  if (waiting.has(path)) return;
  const oldest = waiting.keys().next();
  if (waiting.size >= MOST && !oldest.done) waiting.delete(oldest.value);
  const asked = getBlob(path);
  asked.catch(() => waiting.delete(path));
  waiting.set(path, asked);
}

/** The bytes that were asked for ahead, else asked for now. */
export function takeBlob(path: string, signal: AbortSignal): Promise<Blob> {
  const ahead = waiting.get(path);
  waiting.delete(path);
  return ahead ?? getBlob(path, signal);
}
