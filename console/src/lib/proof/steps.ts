/** The steps by which one certificate is verified. Each has a sentence that says how it came out. */

import { Problem } from "../api.ts";
import { writeCount } from "../format.ts";
import { askBytes, askErasureCertificates, askKeyDocuments, askLeaves, type ListedCertificate } from "./ask.ts";
import { type Bytes, sha256, toHex, Tree } from "./bytes.ts";
import { NotSigned } from "./canonical.ts";
import { CERTIFICATE, readCount, readDocument, readMembers, readText, type SignedDocument } from "./documents.ts";
import { isSignedBy, makeRing, type Trust } from "./keys.ts";

/** `open`: it could not be checked, and the words say why. */
export type Outcome = "good" | "bad" | "open";

export interface Step {
  title: string;
  outcome: Outcome;
  words: string;
}

const MOST_ENTRIES = 20_000;
const ENTRY_BYTES = 33;
const OBJECT = "o".charCodeAt(0);

/** Yields each step as soon as it is done. */
export async function* verifyCertificate(
  number: number,
  bytes: Bytes,
  trust: Trust | null,
  signal: AbortSignal,
): AsyncGenerator<Step> {
  let document: SignedDocument;
  try {
    document = await readDocument(bytes);
  } catch (fault) {
    if (!(fault instanceof NotSigned)) throw fault;
    return yield { title: "Form", outcome: "bad", words: fault.message };
  }
  yield { title: "Form", outcome: "good", words: "It is a signed document in canonical JSON." };
  yield checkPlace(document, number);
  yield await checkSignature(document, number, trust, signal);
  yield await checkPredecessor(document, number, signal);
  yield await checkHash(document, number, signal);
  yield await checkList(document, number, signal);
}

function checkPlace({ kind, document }: SignedDocument, number: number): Step {
  const title = "Number";
  const stated = readCount(document, "number");
  if (kind !== CERTIFICATE) return { title, outcome: "bad", words: `Not a certificate, but a ${kind.slice(0, 80)}.` };
  if (stated !== number) return { title, outcome: "bad", words: `It says that it is number ${stated}.` };
  return { title, outcome: "good", words: `The document says that it is certificate ${number}.` };
}

async function checkSignature(
  document: SignedDocument,
  number: number,
  trust: Trust | null,
  signal: AbortSignal,
): Promise<Step> {
  const title = "Signature";
  if (!trust) return { title, outcome: "open", words: "Enter the key that you trust. Until then, anyone may have signed this." };
  const ring = await makeRing(trust, await askKeyDocuments(number, signal), number);
  const entry = ring.keys.get(document.signedBy);
  if (!entry) {
    const words = `It names key ${document.signedBy.slice(0, 64)}, which you do not trust, and which no key that you trust introduced.`;
    return { title, outcome: "bad", words };
  }
  if (!(await isSignedBy(document, entry.key))) {
    const words = `Invalid signature: key ${entry.key.id} never signed these bytes. Something in them was changed.`;
    return { title, outcome: "bad", words };
  }
  if (ring.last !== entry.key.id) {
    const words = `Key ${entry.key.id} signed it, but at this place key ${ring.last || "?"} signs.`;
    return { title, outcome: "bad", words };
  }
  const origin = entry.by === null ? "which you trust" : `which key ${entry.by} introduced`;
  return { title, outcome: "good", words: `Key ${entry.key.id}, ${origin}, signed exactly these bytes.` };
}

async function checkPredecessor({ document }: SignedDocument, number: number, signal: AbortSignal): Promise<Step> {
  const title = "Predecessor";
  try {
    const hash = toHex(await sha256(await askBytes(number - 1, signal)));
    return hash === readText(document, "previous")
      ? { title, outcome: "good", words: `It names the hash of number ${number - 1}, which is unchanged.` }
      : { title, outcome: "bad", words: `It names a different hash than number ${number - 1} has: one of the two was changed.` };
  } catch (fault) {
    if (!(fault instanceof Problem) || fault.status !== 404) throw fault;
    return { title, outcome: "open", words: `Number ${number - 1} is missing, or you may not read it. Anyone who may read everything can check it.` };
  }
}

async function checkHash({ document, hash }: SignedDocument, number: number, signal: AbortSignal): Promise<Step> {
  const title = "Hash";
  const listed = await findListed(readText(readMembers(document, "erasure"), "id"), number, signal);
  if (!listed) return { title, outcome: "bad", words: `The list of its erasure's certificates does not have number ${number}.` };
  return listed.hash === hash
    ? { title, outcome: "good", words: `Its SHA-256 is ${hash}, as the list says.` }
    : { title, outcome: "bad", words: `Its SHA-256 is ${hash}, and the list says ${listed.hash.slice(0, 64)}.` };
}

async function findListed(erasure: string, number: number, signal: AbortSignal): Promise<ListedCertificate | undefined> {
  try {
    const { items } = await askErasureCertificates(erasure, signal);
    return items.find((item) => item.number === number);
  } catch (fault) {
    const isNone = fault instanceof Problem && (fault.status === 404 || fault.status === 422);
    if (!isNone) throw fault;
    return undefined;
  }
}

async function checkList({ document }: SignedDocument, number: number, signal: AbortSignal): Promise<Step> {
  const title = "List";
  const [leaves, erased] = [readMembers(document, "leaves"), readMembers(document, "erased")];
  const count = readCount(leaves, "count");
  if (count > MOST_ENTRIES) {
    const words = `It has ${writeCount(count)} entries, too many for a page: use inference-store certificates verify.`;
    return { title, outcome: "open", words };
  }
  const list = await askLeaves(number, signal);
  const { root, size, objects } = await sumList(list);
  const isSame =
    root === readText(leaves, "root") &&
    size === count &&
    objects === readCount(erased, "objects") &&
    size - objects === readCount(erased, "inferences");
  return isSame
    ? { title, outcome: "good", words: `The list of what was erased is the one that was signed, with ${writeCount(size)} entries.` }
    : { title, outcome: "bad", words: "The list of what was erased is not the one that was signed." };
}

async function sumList(list: Bytes): Promise<{ root: string; size: number; objects: number }> {
  const tree = new Tree();
  let objects = 0;
  for (let at = 0; at < list.length; at += ENTRY_BYTES) {
    const entry = list.slice(at, at + ENTRY_BYTES);
    if (entry.length < ENTRY_BYTES) return { root: "", size: -1, objects };
    if (entry[0] === OBJECT) objects += 1;
    await tree.add(entry);
  }
  return { root: toHex(await tree.root()), size: tree.size, objects };
}

interface Verdict {
  outcome: Outcome;
  words: string;
}

/** What all steps together say. */
export function judge(number: number, steps: Step[]): Verdict {
  const bad = steps.filter((step) => step.outcome === "bad");
  if (bad.length) return { outcome: "bad", words: `Certificate ${number} is invalid: ${bad[0]?.words ?? ""}` };
  const open = steps.filter((step) => step.outcome === "open").map((step) => step.title.toLowerCase());
  if (open.includes("signature")) return { outcome: "open", words: "Not verified yet: enter the key that you trust." };
  if (open.length) return { outcome: "good", words: `Certificate ${number} is valid. Not checked: ${open.join(" and ")}.` };
  return { outcome: "good", words: `Certificate ${number} is valid.` };
}
