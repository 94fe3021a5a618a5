/** What is asked of the API to verify certificates: bytes, which are believed only if they are signed. */

import { get, getBlob } from "../api.ts";
import type { Bytes } from "./bytes.ts";
import { readDocument, type SignedDocument } from "./documents.ts";
import type { Schemas } from "../types.ts";

export type ListedCertificate = Omit<Schemas["Certificate"], "erased"> & { erased: { inferences: number; objects: number } };

interface Listed<T> {
  items: T[];
  next: string | null;
}

const LIMIT = 1000;

export async function askBytes(number: number, signal: AbortSignal): Promise<Bytes> {
  return new Uint8Array(await (await getBlob(`certificates/${number}`, signal)).arrayBuffer());
}

export async function askLeaves(number: number, signal: AbortSignal): Promise<Bytes> {
  return new Uint8Array(await (await getBlob(`certificates/${number}/leaves`, signal)).arrayBuffer());
}

/** The numbers at which keys are introduced, from below. */
export async function askKeyNumbers(signal: AbortSignal): Promise<number[]> {
  const { items } = await get<Listed<{ number: number }>>("certificates/keys", signal);
  return items.map(({ number }) => number).toSorted((a, b) => a - b);
}

export async function askKeyDocuments(before: number, signal: AbortSignal): Promise<SignedDocument[]> {
  const numbers = (await askKeyNumbers(signal)).filter((number) => number < before);
  const all = await Promise.all(numbers.map((number) => askBytes(number, signal)));
  return Promise.all(all.map(readDocument));
}

export function askErasureCertificates(erasure: string, signal: AbortSignal): Promise<Listed<ListedCertificate>> {
  return get(`certificates?limit=${LIMIT}&erasure=${encodeURIComponent(erasure)}`, signal);
}

/** The hashes that the API lists, by number. */
export async function askHashes(signal: AbortSignal): Promise<Map<number, string>> {
  const hashes = new Map<number, string>();
  for (let cursor: string | null = ""; cursor !== null; ) {
    const more: string = cursor && `&cursor=${encodeURIComponent(cursor)}`;
    const page: Listed<ListedCertificate> = await get(`certificates?limit=${LIMIT}${more}`, signal);
    for (const { number, hash } of page.items) hashes.set(number, hash);
    cursor = page.next;
  }
  return hashes;
}
