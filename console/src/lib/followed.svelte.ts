/** An answer that is asked for again and again while something happens to what it is about. */

import { Loaded } from "./loaded.svelte.ts";

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
