/** The inferences of a filter: page after page, then how many there are. */

import { takeEarly } from "./early.ts";
import type { Link } from "./link.ts";
import { Loaded } from "./loaded.svelte.ts";
import { keepPreviews } from "./preview.svelte.ts";
import { askCount, askPage } from "./questions.ts";
import type { Inference, InferencePage } from "./types.ts";

export class Rows {
  readonly page = new Loaded<InferencePage>();
  readonly count = new Loaded<number>();
  items = $state.raw<Inference[]>([]);
  #link: Link | null = null;
  #isFirst = $state(true);

  /** Asks for the first page, and when that is there, for the count and what else is wanted. */
  begin(link: Link, then: () => void): void {
    this.#link = link;
    this.#isFirst = true;
    this.count.clear();
    this.page.ask(async (signal) => {
      const page = await (takeEarly(link) ?? askPage(link, null, signal));
      signal.throwIfAborted();
      this.items = page.items;
      if (page.next) this.count.ask((counting) => askCount(link, counting));
      then();
      return page;
    });
  }

  /**
   * Asks for the first page again, and marks nothing as old meanwhile: it only has more. Returns false if it does not,
   * because a page is on its way.
   */
  renew(): boolean {
    const link = this.#link;
    if (!link || this.page.isBusy) return false;
    this.#isFirst = false;
    this.page.ask(async (signal) => {
      const page = await askPage(link, null, signal);
      const known = new Map(this.items.map((each) => [each.uid, each]));
      for (const each of page.items) keepPreviews(known.get(each.uid), each);
      const fresh = page.items.filter((each) => !known.has(each.uid)).length;
      const isWhole = fresh < page.items.length; // else there may be more between
      if (this.count.data !== null && isWhole) this.count.data += fresh;
      else if (page.next) this.count.ask((counting) => askCount(link, counting));
      this.items = page.items;
      return page;
    });
    return true;
  }

  /** Whether the items are those of an earlier question. */
  get isStale(): boolean {
    return this.#isFirst && this.page.isBusy;
  }

  get hasMore(): boolean {
    return Boolean(this.page.data?.next);
  }

  /** How many match, if that is known. */
  get total(): number | null {
    return this.page.data && !this.hasMore ? this.items.length : this.count.data;
  }

  more(): void {
    const link = this.#link;
    const next = this.page.data?.next;
    if (!link || !next || this.page.isBusy) return;
    this.#isFirst = false;
    this.page.ask(async (signal) => {
      const page = await askPage(link, next, signal);
      this.items = [...this.items, ...page.items];
      return page;
    });
  }

  /** The neighbours of an inference, in the order of the filter. */
  around(uid: string): { before: Inference | null; after: Inference | null; at: number } {
    const at = this.items.findIndex((each) => each.uid === uid);
    if (at < 0) return { before: null, after: null, at };
    return { before: this.items[at - 1] ?? null, after: this.items[at + 1] ?? null, at };
  }
}
