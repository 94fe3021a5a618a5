/** What to do about a refusal. The API says what is wrong; this says what helps on a page. */

import type { Problem } from "./api.ts";

const ADVICE: Record<number, string> = {
  404: "It is gone, or you may not see it.",
  409: "It is no longer in the state that this page shows. Load it again, and look before you decide.",
  412: "Somebody changed it after you opened it. Load it again: your change is then checked against what is in force now.",
  422: "Change what is named above, and try again.",
  429: "Wait a little, and try again. Nothing was changed.",
  503: "Try again in a moment.",
};

export function advise(problem: Problem, right: string): string {
  if (problem.status === 403) {
    return `You need the right “${right}” over all that you chose. Choose less, or ask the administrator of the store.`;
  }
  if (problem.status === 0 || problem.status === -1) {
    return "It is not known whether the change was made: look before you send it again.";
  }
  return ADVICE[problem.status] ?? "";
}
