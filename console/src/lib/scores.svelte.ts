/** The scores that are shown, of all tiles and of one inference, and how many predictions have which. */

import type { Link } from "./router.svelte.ts";
import { askAggregate } from "./questions.ts";

/** Shares by score, in bins of equal width from 0 to 1. */
export type Histogram = number[];

const BINS = 20;
const BOUNDS = Array.from({ length: BINS + 1 }, (_, bin) => bin / BINS);

class Scores {
  least = $state(0);
  most = $state(1);

  /** Whether it is shown: what has no score always is, and one above 1 if nothing is hidden at that end. */
  has({ score }: { score: number | null }): boolean {
    return score === null || (score >= this.least && (score <= this.most || this.most === 1));
  }

  get isNarrow(): boolean {
    return this.least > 0 || this.most < 1;
  }

  /** What finds inferences with a prediction of these scores. */
  get condition(): string {
    const ends = [this.least > 0 && `score >= ${this.least.toFixed(2)}`, this.most < 1 && `score <= ${this.most.toFixed(2)}`];
    return `prediction(${ends.filter(Boolean).join(" AND ")})`;
  }

  showAll(): void {
    [this.least, this.most] = [0, 1];
  }
}

export const scores = new Scores();

export async function askHistogram(link: Link, of: "top_score" | "prediction.score", signal: AbortSignal): Promise<Histogram> {
  const measures = [{ function: "histogram", of, bounds: BOUNDS, as: "scores" }];
  const { groups } = await askAggregate(link, { measures }, signal);
  const { bins, above } = (groups[0]?.measures.scores ?? { bins: [], above: 0 }) as { bins: { count: number }[]; above: number };
  const counts = bins.map((bin) => bin.count);
  if (counts.length) counts[counts.length - 1] = (counts.at(-1) ?? 0) + above; // a score of 1
  const total = counts.reduce((sum, count) => sum + count, 0) || 1;
  return counts.map((count) => count / total);
}
