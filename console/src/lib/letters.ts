/** Dead letters: counted by reason, and what became of those that were redriven. */

import { get } from "./api.ts";
import { type EntryPage, withQuery } from "./answers.svelte.ts";
import type { Schemas } from "./types.ts";

export type Letter = Schemas["DeadLetter"];
export type WholeLetter = Schemas["DeadLetterDetail"];

const PAGE = 1000;
const MOST_PAGES = 5;

export interface Letters {
  items: Letter[];
  /** Whether there are more. */
  isPartial: boolean;
}

/** The newest letters that match, as many as a page can count. */
export async function collect(query: Record<string, string>, signal?: AbortSignal, downTo = 0): Promise<Letters> {
  const items: Letter[] = [];
  let cursor: string | null = null;
  for (let number = 0; number < MOST_PAGES; number += 1) {
    const where = withQuery("dead-letters", { ...query, limit: PAGE, cursor });
    const page: EntryPage<Letter> = await get(where, signal);
    items.push(...page.items);
    cursor = page.next;
    const last = page.items.at(-1);
    if (!cursor || !last || last.id <= downTo) return { items, isPartial: false };
  }
  return { items, isPartial: true };
}

export function countBy(items: Letter[], name: "reason" | "state"): [value: string, count: number][] {
  const groups = Map.groupBy(items, (letter) => letter[name]);
  const counts = [...groups].map(([value, members]): [string, number] => [value, members.length]);
  return counts.sort(([, a], [, b]) => b - a);
}

/** What became of these letters: all of them, in the order of `ids`, as far as a page can look. */
export async function askOutcomes(ids: number[], signal: AbortSignal): Promise<Letter[]> {
  const wanted = new Set(ids);
  const { items } = await collect({}, signal, Math.min(...ids));
  return items.filter((letter) => wanted.has(letter.id));
}

/** The instant below which all of these were made, so that a redrive takes no newer one. */
export function findEnd(items: Letter[]): string {
  const newest = Math.max(...items.map((letter) => Date.parse(letter.created_at)));
  return new Date(newest + 1).toISOString(); // a Date cuts microseconds
}
