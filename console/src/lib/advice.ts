/** What to do about a refusal. The API says what is wrong; this says what helps on a page. */

import type { Problem } from "./api.ts";

const ADVICE: Record<number, string> = {
  404: "It does not exist, or you are not allowed to see it.",
  409: "Its state has changed since this page was loaded. Reload it before you decide.",
  412: "Someone else changed it after you opened it. Reload it: your change is then checked against the current version.",
  422: "Fix what is named above and try again.",
  429: "Wait a moment and try again. Nothing was changed.",
  503: "Try again in a moment.",
};

export function advise(problem: Problem, right: string): string {
  if (problem.status === 403) {
    return `You need the right “${right}” for everything you selected. Select less, or ask an administrator.`;
  }
  if (problem.status === 0 || problem.status === -1) {
    return "It is unknown whether the change was made. Check before you send it again.";
  }
  return ADVICE[problem.status] ?? "";
}
