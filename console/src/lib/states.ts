/** How a state is shown: its words, and whether it is good, bad or under way. */

export type Tone = "good" | "bad" | "warn" | "busy" | "plain";

const TONES: Record<Exclude<Tone, "plain">, string[]> = {
  good: ["certified", "deleted", "stored", "in_force", "done", "written"],
  bad: ["failed", "open", "dead"],
  warn: ["partly_held", "parked", "unreported", "stale"],
  busy: [
    ...["pending", "listing", "writing", "sending", "marking", "deleting_objects", "verifying", "deleting_rows", "certifying"],
    ...["giving_up", "cancelling", "running", "redrive"],
  ],
};

export function findTone(state: string): Tone {
  const tones = Object.keys(TONES) as (keyof typeof TONES)[];
  return tones.find((tone) => TONES[tone].includes(state)) ?? "plain";
}

export function writeState(state: string): string {
  return state.replaceAll("_", " ");
}

/** `Data read`, of `data_read`. */
export function writeTitle(name: string): string {
  return name.charAt(0).toUpperCase() + writeState(name.slice(1));
}

/** Of dead letters. */
export const LETTER_STATES: Record<string, string> = {
  open: "Waiting for a decision: redrive or discard it.",
  redrive: "An ingester tries it again within seconds.",
  discarded: "Discarded: it will never be indexed.",
  stored: "A redrive indexed it.",
  duplicate: "A redrive found that it was already stored.",
  expired: "Its retention had expired when it was retried; its objects are deleted.",
  erased_again: "It had already been erased; its objects are deleted again.",
  parked: "It waits for an object.",
};
