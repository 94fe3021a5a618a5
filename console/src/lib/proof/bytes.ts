/** Bytes as texts, and their hashes. */

export type Bytes = Uint8Array<ArrayBuffer>;

export function toHex(bytes: Bytes): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Reads base64 in its one form, with padding; null if it is another. */
export function readBase64(text: string): Bytes | null {
  try {
    const letters = atob(text);
    return btoa(letters) === text ? Uint8Array.from(letters, (letter) => letter.charCodeAt(0)) : null;
  } catch {
    return null;
  }
}

export function encode(text: string): Bytes {
  return new TextEncoder().encode(text);
}

export async function sha256(bytes: Bytes): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

export function join(...parts: Bytes[]): Bytes {
  const all = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}
