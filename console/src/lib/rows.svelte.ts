/**
 * The inferences of a filter: page after page, then how many there are. Of pages far from the window only the ids stay;
 * near it again, a page is asked for again.
 */

import { takeEarly } from "./early.ts";
import type { Link } from "./router.svelte.ts";
import { Loaded } from "./answers.svelte.ts";
import { keepPreviews } from "./preview.svelte.ts";
import { askCount, askPage, NEXT_PAGE } from "./questions.ts";
import type { Inference, InferencePage } from "./types.ts";

/** Without `received_at` it is the rest of one that is far from the window. */
export type Row = Inference | (Pick<Inference, "uid" | "model_id" | "inference_id"> & { received_at?: never });

export function isWhole(row: Row): row is Inference {
  return row.received_at !== undefined;
}

/** A page that was read: where its rows are, and what asks for it. */
interface Read {
  from: number;
  to: number;
  cursor: string | null;
  isWhole: boolean;
}

/** So many rows before and behind the window stay whole. */
const KEPT = 1200;
/** What does not come back in so many answers is gone. */
const MOST_ANSWERS = 5;

export class Rows {
  readonly page = new Loaded<InferencePage>();
  readonly count = new Loaded<number>();
  items = $state.raw<Row[]>([]);
  #read: Read[] = [];
  readonly #again = new Loaded<Read>();
  #link: Link | null = null;
  #isFirst = $state(true);
  /** The filter of the items. */
  filter = $state("");

  /** Asks for the first page, and when that is there, for the count and what else is wanted. */
  begin(link: Link, then: () => void): void {
    this.#link = link;
    this.#isFirst = true;
    this.count.clear();
    this.page.ask(async (signal) => {
      const page = await (takeEarly(link) ?? askPage(link, null, signal));
      signal.throwIfAborted();
      this.#restart(page);
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
    this.#askAgain(link);
    return true;
  }

  #askAgain(link: Link): void {
    this.#isFirst = false;
    this.page.ask(async (signal) => {
      const page = await askPage(link, null, signal);
      const known = new Map(this.items.map((each) => [each.uid, each as Inference]));
      for (const each of page.items) keepPreviews(known.get(each.uid), each);
      const fresh = page.items.filter((each) => !known.has(each.uid)).length;
      const isWhole = fresh < page.items.length; // else there may be more between
      if (this.count.data !== null && isWhole) this.count.data += fresh;
      else if (page.next) this.count.ask((counting) => askCount(link, counting));
      this.#restart(page);
      return page;
    });
  }

  stop(): void {
    [this.page, this.count, this.#again].forEach((each) => each.stop());
  }

  /** Whether the items are those of an earlier question. */
  get isStale(): boolean {
    return this.#isFirst && (this.page.isBusy || this.page.problem !== null);
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
      this.#append(page, next);
      return page;
    });
  }

  #restart(page: InferencePage): void {
    this.#again.stop();
    this.#read = [];
    this.items = [];
    this.filter = this.#link?.filter ?? "";
    this.#append(page, null);
  }

  #append({ items }: InferencePage, cursor: string | null): void {
    const from = this.items.length;
    this.#read.push({ from, to: from + items.length, cursor, isWhole: true });
    this.items = this.items.concat(items);
  }

  /** Lets go of what is far from these rows, but for the first page: what asks for that, asks for the newest. */
  keepNear(from: number, to: number): void {
    const isFar = (read: Read) => read.isWhole && read.cursor !== null && (read.to < from - KEPT || read.from > to + KEPT);
    const far = this.#read.filter(isFar);
    if (far.length * NEXT_PAGE > KEPT) {
      far.forEach((read) => this.#change(read, false, toRest));
    }
    const lost = this.#read.find((read) => !read.isWhole && read.from < read.to && read.from < to && read.to > from);
    if (!lost || !this.#link || this.#again.isBusy) return;
    const link = this.#link;
    this.#again.ask(async (signal) => {
      const found = await this.#findAgain(link, lost, signal);
      signal.throwIfAborted();
      this.#again.stop(); // what is drawn now may ask for the next
      this.#change(lost, true, ({ uid }) => found.get(uid) ?? []);
      return lost;
    });
  }

  /** Reads on until the last row of a page, or the one behind it: more may be between by now, or an answer cut short. */
  async #findAgain(link: Link, { from, to, cursor }: Read, signal: AbortSignal): Promise<Map<string, Inference>> {
    const ends = this.items.slice(to - 1, to + 1);
    const found = new Map<string, Inference>();
    for (let answers = 0; cursor && answers < MOST_ANSWERS && !ends.some(({ uid }) => found.has(uid)); answers += 1) {
      const page: InferencePage = await askPage(link, cursor, signal, to - from);
      for (const each of page.items) found.set(each.uid, each);
      cursor = page.next;
    }
    return found;
  }

  /** Has all rows whole, from the first page on, if they are not, whatever page is on its way. */
  keepAll(): void {
    if (this.#link && !this.isStale && this.#read.some((read) => !read.isWhole)) this.#askAgain(this.#link);
  }

  /** Changes the rows of a page, or leaves out those of which nothing is left. */
  #change(read: Read, isNowWhole: boolean, toNew: (row: Row) => Row | Row[]): void {
    read.isWhole = isNowWhole;
    const changed = this.items.slice(read.from, read.to).flatMap(toNew);
    this.items = this.items.toSpliced(read.from, read.to - read.from, ...changed);
    const gone = read.to - read.from - changed.length;
    read.to -= gone;
    for (const each of this.#read.slice(this.#read.indexOf(read) + 1)) {
      each.from -= gone;
      each.to -= gone;
    }
  }

  /** The first of those that are whole. */
  find(test: (inference: Inference) => unknown): Inference | null {
    for (const row of this.items) if (isWhole(row) && test(row)) return row;
    return null;
  }

  /** The neighbours of an inference, in the order of the filter. */
  around(uid: string): { before: Row | null; after: Row | null; at: number } {
    const at = this.items.findIndex((each) => each.uid === uid);
    if (at < 0) return { before: null, after: null, at };
    return { before: this.items[at - 1] ?? null, after: this.items[at + 1] ?? null, at };
  }
}

function toRest({ uid, model_id, inference_id }: Row): Row {
  return { uid, model_id, inference_id };
}
