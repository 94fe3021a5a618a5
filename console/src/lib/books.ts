/** The books: whether they close, and what differs, in words. */

import { writeCount, writeTime } from "./format.ts";
import type { Schemas } from "./types.ts";

export const OUTCOMES = ["stored", "duplicate", "dead", "parked", "expired", "erased_again", "lost", "not_delivered"] as const;

export type Partition = Schemas["Account"];

export type Producer = Schemas["ProducerAccount"];

export type Books = Schemas["Accounting"];

const MOST_SPANS = 5;

export function namePartition({ topic, partition, epoch }: Partition): string {
  return `${topic}, partition ${partition}${epoch ? `, epoch ${epoch}` : ""}`;
}

/** What is to be said of a partition; nothing, if every offset was stored. */
export function explainPartition(account: Partition): string[] {
  const read = account.next - account.first;
  const counted = OUTCOMES.reduce((sum, name) => sum + account[name], 0);
  const words: string[] = [];
  if (counted < read) words.push(`${writeCount(read - counted, "offset")} of ${writeCount(read)} that were read have no state.`);
  if (counted > read) words.push(`There are ${writeCount(counted - read)} more states than offsets that were read.`);
  if (account.waiting) {
    const since = account.oldest_waiting_at ? `, the oldest since ${writeTime(account.oldest_waiting_at)}` : "";
    words.push(`${writeCount(account.waiting, "offset")} ${account.waiting === 1 ? "waits" : "wait"} for an ingester${since}.`);
  }
  if (account.lost) words.push(`Kafka deleted ${writeCount(account.lost, "offset")} before they were read${writeSpans(account)}.`);
  if (account.dead_open) words.push(`${writeCount(account.dead_open, "dead letter")} ${account.dead_open === 1 ? "waits" : "wait"} for a decision.`);
  if (account.parked) words.push(`${writeCount(account.parked, "event")} ${account.parked === 1 ? "waits" : "wait"} for an object.`);
  return words;
}

function writeSpans({ lost_offsets: spans }: Partition): string {
  if (!spans.length) return "";
  const shown = spans.slice(0, MOST_SPANS).map(({ lo, hi }) => (hi - lo === 1 ? `${lo}` : `${lo}–${hi - 1}`));
  return `: ${shown.join(", ")}${spans.length > MOST_SPANS ? " …" : ""}`;
}
