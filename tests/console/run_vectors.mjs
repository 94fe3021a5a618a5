// Answers the questions of proof_vectors.json, given as standard input, by the console's own modules.

import { readFileSync } from "node:fs";
import { toHex, Tree } from "../../console/src/lib/proof/bytes.ts";
import { NotSigned, parseExact, writeCanonical } from "../../console/src/lib/proof/canonical.ts";
import { SignedChain } from "../../console/src/lib/proof/chain.ts";
import { readDocument } from "../../console/src/lib/proof/documents.ts";
import { NoKey, readTrust } from "../../console/src/lib/proof/keys.ts";

const encode = (text) => new TextEncoder().encode(text);
const fromHex = (text) => Uint8Array.from(text.match(/../g), (pair) => parseInt(pair, 16));

async function answer(question) {
  try {
    return await question();
  } catch (fault) {
    if (fault instanceof NotSigned || fault instanceof NoKey) return null;
    throw fault;
  }
}

async function answerAll(questions, question) {
  return Promise.all(questions.map(async ([input]) => [input, await answer(() => question(input))]));
}

async function findRoot(entries) {
  const tree = new Tree();
  for (const entry of entries) await tree.add(fromHex(entry));
  return toHex(await tree.root());
}

async function findFaulty(texts, trusted) {
  const chain = new SignedChain(new Set(trusted));
  const faulty = [];
  for (const text of texts) {
    const document = await readDocument(encode(text));
    const faults = await chain.check(document);
    faulty.push(faults.length > 0);
    if (faults.length) chain.skip(document.hash);
    else await chain.advance(document);
  }
  return faulty;
}

const vectors = JSON.parse(readFileSync(0, "utf-8"));
const answers = {
  canonical: await answerAll(vectors.canonical, (text) => writeCanonical(parseExact(text))),
  documents: await answerAll(vectors.documents, async (text) => (await readDocument(encode(text))).hash),
  keys: await answerAll(vectors.keys, async (text) => [...(await readTrust(text)).ids]),
  trees: await answerAll(vectors.trees, findRoot),
  chains: await Promise.all(
    vectors.chains.map(async ([texts, trusted]) => [texts, trusted, await findFaulty(texts, trusted)]),
  ),
};
process.stdout.write(JSON.stringify(answers));
