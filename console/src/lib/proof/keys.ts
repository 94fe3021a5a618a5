/** Public keys: those that a reader trusts, and those that one of these introduced in the chain. */

import { type Bytes, readBase64, sha256, toHex } from "./bytes.ts";
import { KEY, readCount, readText, type SignedDocument } from "./documents.ts";

export interface PublicKey {
  /** The beginning of the SHA-256 of its 32 bytes. */
  id: string;
  raw: Bytes;
}

/** What a reader trusts: keys, and ids of keys, whose bytes may come from anywhere. */
export interface Trust {
  keys: PublicKey[];
  ids: Set<string>;
}

/** The text names no key; the message is a sentence for the reader. */
export class NoKey extends Error {}

const ID_LETTERS = 32;
const RAW_BYTES = 32;
/** What comes before the 32 bytes in DER (RFC 8410). */
const DER_PREFIX = "302a300506032b6570032100";
const BLOCK = /-----BEGIN PUBLIC KEY-----([^-]*)-----END PUBLIC KEY-----/g;

export async function makeKey(raw: Bytes): Promise<PublicKey> {
  return { id: toHex(await sha256(raw)).slice(0, ID_LETTERS), raw };
}

/** Whether the key has signed the document. */
export async function isSignedBy(document: SignedDocument, key: PublicKey): Promise<boolean> {
  if (document.signedBy !== key.id || key.raw.length !== RAW_BYTES) return false;
  const imported = await crypto.subtle.importKey("raw", key.raw, "Ed25519", false, ["verify"]);
  return crypto.subtle.verify("Ed25519", imported, document.signature, document.signed);
}

/** Why this browser can verify nothing, as a sentence; an empty text if it can. */
export async function findObstacle(): Promise<string> {
  if (!globalThis.crypto?.subtle) return "Browsers verify signatures only over https:// and on localhost.";
  try {
    await crypto.subtle.importKey("raw", new Uint8Array(RAW_BYTES), "Ed25519", false, ["verify"]);
  } catch (fault) {
    const isUnknown = fault instanceof DOMException && fault.name === "NotSupportedError";
    if (isUnknown) return "This browser does not know Ed25519. Chrome does from 137, Firefox from 129, Safari from 17.";
  }
  return "";
}

/** Reads keys as PEM, as base64, or as ids, one a line. Throws NoKey. */
export async function readTrust(text: string): Promise<Trust> {
  if (text.includes("PRIVATE KEY")) {
    throw new NoKey("This is a private key. Never paste one into a page: paste the public key.");
  }
  const blocks = [...text.matchAll(BLOCK)].map((match) => readBlock(match[1] ?? ""));
  const words = text.replace(BLOCK, " ").split(/\s+/).filter(Boolean);
  const isId = (word: string) => /^[0-9a-f]{32}$/i.test(word);
  const raws = [...blocks, ...words.filter((word) => !isId(word)).map(readRaw)];
  const keys = await Promise.all(raws.map(makeKey));
  const ids = new Set([...words.filter(isId).map((word) => word.toLowerCase()), ...keys.map((key) => key.id)]);
  if (!ids.size) throw new NoKey("No key found: paste a public key (PEM or base64) or a key ID.");
  return { keys, ids };
}

function readBlock(content: string): Bytes {
  const der = readBase64(content.replace(/\s+/g, ""));
  const isOurs = der?.length === DER_PREFIX.length / 2 + RAW_BYTES && toHex(der).startsWith(DER_PREFIX);
  if (!der || !isOurs) throw new NoKey("One block is not an Ed25519 public key.");
  return der.slice(-RAW_BYTES);
}

function readRaw(word: string): Bytes {
  const raw = readBase64(word);
  if (raw?.length !== RAW_BYTES) {
    throw new NoKey(`“${word.slice(0, 40)}” is neither a public key of 32 bytes in base64 nor the ID of one.`);
  }
  return raw;
}

interface KeyRing {
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
