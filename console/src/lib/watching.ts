/**
 * Notices that the session of this browser has ended, or is somebody else's by now. Of the windows that are
 * seen, one asks for all of them; a hidden one asks nothing, and asks at once when it is seen again.
 */

import { onRefusal, Problem, watch } from "./api.ts";
import type { Caller } from "./types.ts";

const CHANNEL = "inference-store-session";
/** A page ends within 2 seconds of its key being revoked: the api looks it up anew for such a question. */
const PAUSE_MS = 1200;
/** How much longer a window waits that has heard from another: that one asks first. */
const LEEWAY_MS = 400;
const LONGEST_MS = 5000;
/** What is heard, in place of a name, of a window whose session was refused. */
const NOBODY = "";

export class Watching {
  readonly #channel = new BroadcastChannel(CHANNEL);
  readonly #name: string;
  readonly #onchange: () => void;
  #later: ReturnType<typeof setTimeout> | undefined;
  #isOver = false;
  readonly #forget: () => void;

  /** `name`: who is signed in here. `onchange`: what to do if it is somebody else by now; of a refusal `api.ts` tells. */
  constructor(name: string, onchange: () => void) {
    this.#name = name;
    this.#onchange = onchange;
    this.#channel.onmessage = ({ data }) => this.#hear(data);
    document.addEventListener("visibilitychange", this.#turn);
    this.#forget = onRefusal(() => this.#channel.postMessage(NOBODY));
    this.#plan(PAUSE_MS);
  }

  stop(): void {
    this.#isOver = true;
    this.#forget();
    clearTimeout(this.#later);
    document.removeEventListener("visibilitychange", this.#turn);
    this.#channel.close();
  }

  readonly #turn = (): void => {
    clearTimeout(this.#later);
    if (!document.hidden) void this.#ask();
  };

  /** What another window was answered. */
  #hear(name: string): void {
    if (name === NOBODY) void this.#ask(); // hidden or not: nothing of it is shown when it is seen again
    else if (name !== this.#name) this.#onchange();
    else this.#plan(PAUSE_MS + LEEWAY_MS);
  }

  #plan(pause: number): void {
    clearTimeout(this.#later);
    if (!this.#isOver && !document.hidden) this.#later = setTimeout(() => void this.#ask(), pause);
  }

  async #ask(): Promise<void> {
    let pause = PAUSE_MS;
    try {
      const { name } = await watch<Caller>("me", AbortSignal.timeout(LONGEST_MS));
      if (this.#isOver) return;
      this.#channel.postMessage(name);
      if (name !== this.#name) this.#onchange();
    } catch (fault) {
      if (fault instanceof Problem && fault.retrySeconds) pause = fault.retrySeconds * 1000;
    }
    this.#plan(pause);
  }
}
