/** What the API answers: once, again and again, page after page, or to a change. */

import { get, Problem } from "./api.ts";

const PAUSE_SECONDS = 5;

export class Loaded<T> {
  data = $state.raw<T | null>(null);
  problem = $state.raw<Problem | null>(null);
  isBusy = $state(false);
  /** Whether there was an answer, which may be `null`, or a problem. */
  isSettled = $state(false);
  #current: AbortController | null = null;
  #again: ReturnType<typeof setTimeout> | undefined;

  /** Asks, and forgets what was asked before. An older answer stays, marked by `isBusy`. */
  ask(question: (signal: AbortSignal) => Promise<T>): void {
    this.stop();
    const current = new AbortController();
    this.#current = current;
    this.isBusy = true;
    question(current.signal).then(
      (data) => this.#settle(current, data, null),
      (fault: unknown) => {
        if (current.signal.aborted) return;
        const problem = toProblem(fault);
        this.#settle(current, null, problem);
        if (problem.passes) this.#askLater(question, problem);
      },
    );
  }

  /** Gives up what is being asked. */
  stop(): void {
    this.#current?.abort();
    clearTimeout(this.#again);
    this.isBusy = false;
  }

  clear(): void {
    this.stop();
    this.data = null;
    this.problem = null;
    this.isSettled = false;
  }

  #settle(current: AbortController, data: T | null, problem: Problem | null): void {
    if (this.#current !== current || current.signal.aborted) return;
    this.data = data;
    this.problem = problem;
    this.isBusy = false;
    this.isSettled = true;
  }

  #askLater(question: (signal: AbortSignal) => Promise<T>, problem: Problem): void {
    const seconds = problem.retrySeconds ?? PAUSE_SECONDS;
    this.#again = setTimeout(() => this.ask(question), seconds * 1000);
  }
}

export class Followed<T> {
  readonly answer = new Loaded<T>();
  /** When the answer that is shown came. */
  at = $state<Date | null>(null);
  #question: ((signal: AbortSignal) => Promise<T>) | null = null;
  #pause: (data: T) => number | null;
  #later: ReturnType<typeof setTimeout> | undefined;

  /** `pause`: after how many milliseconds to ask again; null: never. */
  constructor(pause: (data: T) => number | null) {
    this.#pause = pause;
  }

  follow(question: (signal: AbortSignal) => Promise<T>): void {
    this.stop();
    this.#question = question;
    document.addEventListener("visibilitychange", this.#wake);
    this.now();
  }

  /** Asks at once, as after a change. */
  now(): void {
    const question = this.#question;
    if (!question) return;
    clearTimeout(this.#later);
    this.answer.ask(async (signal) => {
      const data = await question(signal);
      this.at = new Date();
      this.#plan(data);
      return data;
    });
  }

  stop(): void {
    this.#question = null;
    clearTimeout(this.#later);
    document.removeEventListener("visibilitychange", this.#wake);
    this.answer.stop();
  }

  #plan(data: T): void {
    const pause = this.#pause(data);
    if (pause === null || !this.#question) return;
    // A hidden tab asks nothing: it asks when it is seen again.
    this.#later = setTimeout(() => !document.hidden && this.now(), pause);
  }

  readonly #wake = (): void => {
    const { data } = this.answer;
    if (!document.hidden && data !== null && this.#pause(data) !== null) this.now();
  };
}

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

export class Mutation<T> {
  data = $state.raw<T | null>(null);
  problem = $state.raw<Problem | null>(null);
  isBusy = $state(false);

  /** Sends, and returns the answer, or null if it was refused: `problem` says why. */
  async send(change: () => Promise<T>): Promise<T | null> {
    if (this.isBusy) return null;
    this.isBusy = true;
    this.problem = null;
    try {
      this.data = await change();
      return this.data;
    } catch (fault) {
      this.data = null;
      this.problem = toProblem(fault);
      return null;
    } finally {
      this.isBusy = false;
    }
  }

  clear(): void {
    this.data = null;
    this.problem = null;
  }
}

export function toProblem(fault: unknown): Problem {
  if (fault instanceof Problem) return fault;
  console.error(fault);
  return new Problem(-2, "Something went wrong on this page", String(fault));
}
