/** Who looks, and what they may do. */

import { get, Problem } from "./api.ts";
import { Loaded } from "./loaded.svelte.ts";
import { models } from "./models.svelte.ts";
import type { Caller } from "./types.ts";

const ENDED =
  "The page was cleared; its address stays the same. If your key was revoked or has expired, " +
  "ask the administrator of the store for a new one.";

class Me {
  readonly answer = new Loaded<Caller>();

  ask(): void {
    this.answer.ask((signal) => get("me", signal));
  }

  /** Nobody is signed in any more: what was shown goes at once. */
  end(problem: Problem): void {
    const wasSignedIn = this.answer.data !== null;
    if (wasSignedIn) problem = new Problem(problem.status, "You are signed out", `${problem.detail} ${ENDED}`);
    else if (this.answer.problem?.status === problem.status) return;
    this.answer.clear();
    this.answer.problem = problem;
    models.answer.clear();
  }

  /** Whether a right is had over some model, or over everything; the API decides about each. */
  may(right: string, isWide = false): boolean {
    const { data } = this.answer;
    const had: readonly string[] | undefined = isWide ? data?.rights_over_everything : data?.rights;
    return had?.includes(right) ?? false;
  }
}

export const me = new Me();

/** Asks everything again that does not depend on the link, as after another key. */
export function askAll(): void {
  me.ask();
  models.ask();
}
