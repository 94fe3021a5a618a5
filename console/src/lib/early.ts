/** The first page of the link that the console was opened with: asked before the code that shows it has come. */

import { onRefusal } from "./api.ts";
import { EMPTY_LINK, formatLink, type Link } from "./router.svelte.ts";
import { askPage } from "./questions.ts";
import type { InferencePage } from "./types.ts";

/** An older answer is not taken for a new one. */
const KEEP_MS = 5000;
let pending: { question: string; answer: Promise<InferencePage> } | null = null;

/** Asks, if the link is of a model. Whoever may not see it is told so by the page, which asks again. */
export function askEarly(link: Link): void {
  if (!link.model || link.entry || link.view === "map") return;
  const answer = askPage(link, null);
  pending = { question: describe(link), answer };
  const forget = () => (pending = null);
  answer.catch(forget);
  onRefusal(forget);
  setTimeout(forget, KEEP_MS);
}

/** Returns that answer once, if it is of the same question. */
export function takeEarly(link: Link): Promise<InferencePage> | null {
  const answer = pending?.question === describe(link) ? pending.answer : null;
  pending = null;
  return answer;
}

function describe({ model, filter, time, sort }: Link): string {
  return formatLink({ ...EMPTY_LINK, model, filter, time, sort });
}
