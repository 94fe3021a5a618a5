/** Signed documents, read from the bytes of a file or of an answer. */

import { type Bytes, encode, readBase64, sha256, toHex } from "./bytes.ts";
import { type Json, NotSigned, parseExact, writeCanonical } from "./canonical.ts";

type Members = { [name: string]: Json };

export interface SignedDocument {
  kind: string;
  document: Members;
  signedBy: string;
  signature: Bytes;
  /** What the signature is over. */
  signed: Bytes;
  /** SHA-256 over all of its bytes, which the next document of a chain names. */
  hash: string;
}

export const CERTIFICATE = "certificate";
export const KEY = "certificate_key";
const MEMBERS = ["document", "kind", "signature", "signed_by"];

/** Reads a document, and verifies no signature. Throws NotSigned. */
export async function readDocument(bytes: Bytes): Promise<SignedDocument> {
  const text = decode(bytes);
  const envelope = readEnvelope(text);
  const { document, kind, signature, signed_by: signedBy } = envelope;
  if (!isMembers(document)) throw new NotSigned("Its `document` is not a JSON object.");
  if (typeof kind !== "string" || typeof signedBy !== "string") throw new NotSigned("Its kind or its key is not a string.");
  const raw = typeof signature === "string" ? readBase64(signature) : null;
  if (!raw) throw new NotSigned("Its signature is not base64.");
  const signed = encode(`inference-store ${kind}\n${writeCanonical(document)}`);
  return { kind, document, signedBy, signature: raw, signed, hash: toHex(await sha256(bytes)) };
}

function decode(bytes: Bytes): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new NotSigned("It is not valid UTF-8.");
  }
}

function readEnvelope(text: string): Members {
  const envelope = parseExact(text);
  const isWhole = isMembers(envelope) && Object.keys(envelope).toSorted().join() === MEMBERS.join();
  if (!isWhole) throw new NotSigned(`It is not a JSON object with ${MEMBERS.join(", ")}.`);
  if (writeCanonical(envelope) !== text) {
    throw new NotSigned("It is not in canonical form: something in it was changed.");
  }
  return envelope;
}

export function isMembers(value: Json | undefined): value is Members {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A member that is text; an empty text if it is none. */
export function readText(members: Members, name: string): string {
  const value = members[name];
  return typeof value === "string" ? value : "";
}

/** A member that is a count; -1 if it is none. */
export function readCount(members: Members, name: string): number {
  const value = members[name];
  return typeof value === "bigint" ? Number(value) : -1;
}

export function readMembers(members: Members, name: string): Members {
  const value = members[name];
  return isMembers(value) ? value : {};
}
