/** An answer that is asked for, and asked for again while the api is away. */

import { Problem } from "./api.ts";

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
        const problem = fault instanceof Problem ? fault : null;
        if (!current.signal.aborted) {
          if (!problem) console.error(fault);
          this.#settle(current, null, problem ?? new Problem(-2, "Something went wrong on this page", String(fault)));
          if (problem?.passes) this.#askLater(question, problem);
        }
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
