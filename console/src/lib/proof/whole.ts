/** Verifies all of the chain that a caller may read, from its beginning. */

import { Problem } from "../api.ts";
import { askBytes, askHashes, askKeyNumbers } from "./ask.ts";
import type { Bytes } from "./bytes.ts";
import { NotSigned } from "./canonical.ts";
import { SignedChain } from "./chain.ts";
import { readDocument, type SignedDocument } from "./documents.ts";
import type { Trust } from "./keys.ts";

export interface Progress {
  /** The last number that was checked, and the last that there is. */
  done: number;
  end: number;
  /** How many could be read and checked. */
  checked: number;
  /** Numbers that the caller may not read: nobody checked these. */
  hidden: number[];
  faults: { number: number; words: string }[];
  /** The hash of the last one. */
  hash: string | null;
}

const AT_ONCE = 8;
const MOST_FAULTS = 100;
/** Of one document that the api refuses for the number of requests. */
const MOST_TRIES = 10;

/** Yields how far it is. `isWhole`: whether the caller may read everything, so that nothing may lack. */
export async function* verifyChain(trust: Trust, isWhole: boolean, signal: AbortSignal): AsyncGenerator<Progress> {
  const [hashes, keys] = await Promise.all([askHashes(signal), askKeyNumbers(signal)]);
  const numbers = new Set([...hashes.keys(), ...keys]);
  const end = [...numbers].reduce((most, number) => Math.max(most, number), 0);
  const chain = new SignedChain(trust.ids);
  const progress: Progress = { done: 0, end, checked: 0, hidden: [], faults: [], hash: null };
  for (let first = 1; first <= end; first += AT_ONCE) {
    const some = Array.from({ length: Math.min(AT_ONCE, end - first + 1) }, (_, at) => first + at);
    const all = await Promise.all(some.map((number) => (numbers.has(number) ? askOne(number, signal) : null)));
    for (const [at, bytes] of all.entries()) {
      await checkNext(chain, progress, bytes, hashes.get(first + at), isWhole);
    }
    yield { ...progress, done: chain.number, hash: chain.hash };
  }
  if (!end) yield progress;
}

/** The document of a number; null if it is not there. Waits if the api has too many requests from here. */
async function askOne(number: number, signal: AbortSignal, tries = MOST_TRIES): Promise<Bytes | null> {
  try {
    return await askBytes(number, signal);
  } catch (fault) {
    if (!(fault instanceof Problem)) throw fault;
    if (fault.status === 404) return null;
    if (fault.status !== 429 || !tries || signal.aborted) throw fault;
    await new Promise((resolve) => setTimeout(resolve, (fault.retrySeconds ?? 1) * 1000));
    return askOne(number, signal, tries - 1);
  }
}

async function checkNext(
  chain: SignedChain,
  progress: Progress,
  bytes: Bytes | null,
  listed: string | undefined,
  isWhole: boolean,
): Promise<void> {
  const number = chain.number + 1;
  const note = (words: string) => progress.faults.length < MOST_FAULTS && progress.faults.push({ number, words });
  if (!bytes) {
    if (isWhole) note("It is missing.");
    else progress.hidden.push(number);
    return chain.skip(listed ?? null);
  }
  const { document, faults } = await readNext(chain, bytes);
  if (document && listed !== undefined && listed !== document.hash) faults.push("The list says that its hash is another.");
  faults.forEach(note);
  progress.checked += 1;
  if (!document || faults.length) chain.skip(listed ?? document?.hash ?? null);
  else await chain.advance(document);
}

async function readNext(
  chain: SignedChain,
  bytes: Bytes,
): Promise<{ document: SignedDocument | null; faults: string[] }> {
  try {
    const document = await readDocument(bytes);
    return { document, faults: await chain.check(document) };
  } catch (fault) {
    if (!(fault instanceof NotSigned)) throw fault;
    return { document: null, faults: [fault.message] };
  }
}
