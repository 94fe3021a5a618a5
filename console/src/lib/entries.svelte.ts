/** The entries of a list of the API, page after page. */

import { get } from "./api.ts";
import { Loaded } from "./loaded.svelte.ts";

export interface EntryPage<T> {
  items: T[];
  next: string | null;
}

const LIMIT = 100;

/** A list's address with a query; what is empty is left out. */
export function withQuery(path: string, query: Record<string, string | number | null | undefined>): string {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

export class Entries<T> {
  readonly page = new Loaded<EntryPage<T>>();
  items = $state.raw<T[]>([]);
  #path = "";
  #query: Record<string, string> = {};

  /** Asks for the first page. What another question gave is gone at once. */
  begin(path: string, query: Record<string, string> = {}): void {
    const isOther = withQuery(path, query) !== withQuery(this.#path, this.#query);
    [this.#path, this.#query] = [path, query];
    if (isOther) {
      this.items = [];
      this.page.clear();
    }
    this.#ask(null);
  }

  reload(): void {
    this.#ask(null);
  }

  more(): void {
    const next = this.page.data?.next;
    if (next && !this.page.isBusy) this.#ask(next);
  }

  stop(): void {
    this.page.stop();
  }

  #ask(cursor: string | null): void {
    const where = withQuery(this.#path, { ...this.#query, limit: LIMIT, cursor });
    this.page.ask(async (signal) => {
      const page = await get<EntryPage<T>>(where, signal);
      this.items = cursor ? [...this.items, ...page.items] : page.items;
      return page;
    });
  }
}
