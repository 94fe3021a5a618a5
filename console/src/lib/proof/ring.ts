/** The keys that a reader may rely on: their own, and those that one of these introduced in the chain. */

import { readBase64 } from "./bytes.ts";
import { KEY, readCount, readText, type SignedDocument } from "./documents.ts";
import { isSignedBy, makeKey, type PublicKey, type Trust } from "./keys.ts";

export interface KeyRing {
  /** The keys, with the id of the key that introduced each; null: the reader gave it. */
  keys: Map<string, { key: PublicKey; by: string | null }>;
  /** The id of the key that was introduced last. */
  last: string;
}

/** Goes through the documents of keys, the oldest first, as far as before a number. */
export async function makeRing(trust: Trust, documents: SignedDocument[], before: number): Promise<KeyRing> {
  const ring: KeyRing = { keys: new Map(trust.keys.map((key) => [key.id, { key, by: null }])), last: "" };
  for (const document of documents) {
    const key = await readIntroduced(document);
    if (!key || readCount(document.document, "number") >= before) continue;
    ring.last = key.id;
    if (trust.ids.has(key.id)) ring.keys.set(key.id, { key, by: null });
    const signer = ring.keys.get(document.signedBy)?.key;
    const isIntroduced = signer && !ring.keys.has(key.id) && (await isSignedBy(document, signer));
    if (isIntroduced) ring.keys.set(key.id, { key, by: signer.id });
  }
  return ring;
}

/** The key that a document introduces; null if it introduces none. */
export async function readIntroduced(document: SignedDocument): Promise<PublicKey | null> {
  const raw = document.kind === KEY ? readBase64(readText(document.document, "public_key")) : null;
  return raw && makeKey(raw);
}
