/** What a person decides in a dialog, with a reason, and what the API answers. */

import { Mutation } from "./mutation.svelte.ts";

export class Decision<Action extends string> {
  readonly mutation = new Mutation<unknown>();
  /** The action whose dialog is open. */
  open = $state<Action | null>(null);
  reason = $state("");
  readonly #onchange: () => void;

  constructor(onchange: () => void) {
    this.#onchange = onchange;
  }

  show(action: Action): void {
    this.mutation.clear();
    this.open = action;
  }

  close(): void {
    this.open = null;
  }

  /** Closes the dialog, and has what it is about read again. */
  finish(): void {
    this.close();
    this.#onchange();
  }

  async send(change: () => Promise<unknown>): Promise<void> {
    if (await this.mutation.send(change)) this.finish();
  }
}
