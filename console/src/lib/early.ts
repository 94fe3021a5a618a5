/** The first page of the link that the console was opened with: asked before the code that shows it has come. */

import { onRefusal } from "./api.ts";
import { formatLink, type Link, NOWHERE } from "./link.ts";
import { askPage } from "./questions.ts";
import type { InferencePage } from "./types.ts";

/** An older answer is not taken for a new one. */
const KEEP_MS = 5000;
let asked: { question: string; answer: Promise<InferencePage> } | null = null;

/** Asks, if the link is of a model. Whoever may not see it is told so by the page, which asks again. */
export function askEarly(link: Link): void {
  if (!link.model || link.view === "map") return;
  const answer = askPage(link, null);
  asked = { question: describe(link), answer };
  const forget = () => (asked = null);
  answer.catch(forget);
  onRefusal(forget);
  setTimeout(forget, KEEP_MS);
}

/** Returns that answer once, if it is of the same question. */
export function takeEarly(link: Link): Promise<InferencePage> | null {
  const answer = asked?.question === describe(link) ? asked.answer : null;
  asked = null;
  return answer;
}

function describe({ model, filter, time, sort }: Link): string {
  return formatLink({ ...NOWHERE, model, filter, time, sort });
}
