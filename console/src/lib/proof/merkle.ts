/** The root of a Merkle tree, as RFC 6962 hashes it (section 2.1). */

import { type Bytes, join, sha256 } from "./bytes.ts";

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
