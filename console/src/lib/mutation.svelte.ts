/** A change that is sent once: nothing here sends it again by itself. */

import { Problem } from "./api.ts";

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
