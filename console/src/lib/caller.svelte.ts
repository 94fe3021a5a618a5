/** Who looks, what they may do, and which models they may see. */

import { Loaded } from "./answers.svelte.ts";
import { get, Problem } from "./api.ts";
import type { Caller, Model } from "./types.ts";

const MOST = 1000;

class Models {
  readonly answer = new Loaded<{ items: Model[]; next: string | null }>();

  ask(): void {
    this.answer.ask((signal) => get(`models?limit=${MOST}`, signal));
  }

  find(id: string): Model | null {
    return this.answer.data?.items.find((model) => model.model_id === id) ?? null;
  }
}

export const models = new Models();

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

  /** Whether the api asks for a key. */
  get isGuarded(): boolean {
    return this.answer.data?.switched_on.access_control ?? false;
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
