/** Bytes as texts, and their hashes, also that of a Merkle tree (RFC 6962, section 2.1). */

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

const LEAF = Uint8Array.of(0);
const NODE = Uint8Array.of(1);

/** Grows from left to right, in the memory of its height. */
export class Tree {
  size = 0;
  #stack: { height: number; hash: Bytes }[] = [];

  async add(entry: Bytes): Promise<void> {
    let grown = { height: 0, hash: await sha256(join(LEAF, entry)) };
    this.size += 1;
    for (let left = this.#stack.at(-1); left?.height === grown.height; left = this.#stack.at(-1)) {
      this.#stack.pop();
      grown = { height: grown.height + 1, hash: await hashNode(left.hash, grown.hash) };
    }
    this.#stack.push(grown);
  }

  /** The root of what was added so far. */
  async root(): Promise<Bytes> {
    const [last, ...lefts] = this.#stack.toReversed();
    if (!last) return sha256(new Uint8Array());
    let { hash } = last;
    for (const left of lefts) hash = await hashNode(left.hash, hash);
    return hash;
  }
}

function hashNode(left: Bytes, right: Bytes): Promise<Bytes> {
  return sha256(join(NODE, left, right));
}
