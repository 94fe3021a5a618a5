/** What lies before and behind an inference that is not among the rows, as a link may open one. */

import type { Link } from "./link.ts";
import { askNeighbours } from "./questions.ts";

export interface Around {
  before: { uid: string } | null;
  after: { uid: string } | null;
}

/** The neighbours in the order of the page. */
export async function askAround(link: Link, signal: AbortSignal): Promise<Around> {
  const { before, after } = await askNeighbours(link, signal);
  return { before, after };
}
