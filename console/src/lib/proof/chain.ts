/** Follows a chain of signed documents from its beginning. The store itself follows it in the same way. */

import { CERTIFICATE, isMembers, KEY, readCount, readText, type SignedDocument } from "./documents.ts";
import { isSignedBy, type PublicKey, readIntroduced } from "./keys.ts";

export class SignedChain {
  /** The number of the last document. */
  number = 0;
  /** Its hash; null: nobody knows it, nor whether the next one follows it. */
  hash: string | null = "";
  #keys: PublicKey[] = [];
  #trusted: Set<string>;

  constructor(trusted: Set<string>) {
    this.#trusted = trusted;
  }

  /** All that is wrong with what should be the next document, as sentences. */
  async check(document: SignedDocument): Promise<string[]> {
    const signer = await this.#findSigner(document);
    const faults = [...this.#findPlaceFaults(document), await this.#findSignatureFault(document, signer)];
    return faults.filter((fault) => fault !== "");
  }

  /** Goes on to a document that was checked. */
  async advance(document: SignedDocument): Promise<void> {
    const key = await readIntroduced(document);
    if (key) this.#keys.push(key);
    this.number += 1;
    this.hash = document.hash;
  }

  /** Goes over a document that cannot be read, or is not as it was signed; `hash`: what it had. */
  skip(hash: string | null): void {
    this.number += 1;
    this.hash = hash;
  }

  #findPlaceFaults({ kind, document }: SignedDocument): string[] {
    const number = readCount(document, "number");
    return [
      number === this.number + 1 ? "" : `It says that it is number ${number}.`,
      this.hash === null || readText(document, "previous") === this.hash ? "" : "It names a different hash for the one before it.",
      kind === CERTIFICATE || kind === KEY ? "" : `Unknown document kind: ${kind.slice(0, 80)}.`,
    ];
  }

  /** The key that should have signed a document here: the last, unless one restarts the chain. */
  async #findSigner(document: SignedDocument): Promise<PublicKey | null> {
    const key = await readIntroduced(document);
    const last = this.#keys.at(-1);
    if (!last) return key;
    const isRestart = key && isMembers(document.document.begun_anew) && (await isSignedBy(document, key));
    return isRestart ? key : last;
  }

  async #findSignatureFault(document: SignedDocument, signer: PublicKey | null): Promise<string> {
    if (!signer) return "The first of a chain introduces its key, and this does not.";
    if (!(await isSignedBy(document, signer))) {
      return `The signature is not of key ${signer.id}, which signs at this place.`;
    }
    if (signer.id === this.#keys.at(-1)?.id || this.#trusted.has(signer.id)) return "";
    return this.#keys.length
      ? `The chain begins anew with key ${signer.id}, which no key before it has signed and which you do not trust.`
      : `The chain begins with key ${signer.id}, which is none that you trust.`;
  }
}
