/** The books: whether they close, and what differs, in words. */

import { writeCount } from "./numbers.ts";
import { writeTime } from "./times.ts";
import type { Schemas } from "./types.ts";

export const OUTCOMES = ["stored", "duplicate", "dead", "parked", "expired", "erased_again", "lost", "not_delivered"] as const;

export type Partition = Schemas["Account"];

export type Counts = Pick<Report, keyof Report & keyof Producer>;

export type Report = Schemas["ProducerReport"];
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

/** What is to be said of a producer; nothing, if all that it captured has arrived. */
export function explainProducer(account: Producer): string[] {
  const { holes } = account;
  const words: string[] = [];
  const counted = account.sampled_out + sum(account.dropped) + account.queued + account.unsettled + account.published;
  if (counted !== account.seen) {
    words.push(`Its reports do not add up: it saw ${writeCount(account.seen, "exchange")}, but accounts for ${writeCount(counted)}.`);
  }
  if (holes.dropped) words.push(`${writeCount(holes.dropped)} were dropped or refused, and counted${writeReasons(account.dropped)}.`);
  if (holes.waiting) words.push(`${writeCount(holes.waiting)} are queued, in a spool, or on their way.`);
  if (holes.unknown_tail) words.push(`${writeCount(holes.unknown_tail)} were in memory when the producer died, and were lost.`);
  if (holes.unexplained) words.push(`${writeCount(holes.unexplained)} did not arrive, and nothing explains why. While ingesters lag, some may still be in Kafka; the rest were lost.`);
  if (account.unsettled) words.push(`${writeCount(account.unsettled)} were queued when a process died, and were not in the spool.`);
  return words;
}

export function sum(counts: Record<string, number>): number {
  return Object.values(counts).reduce((total, count) => total + count, 0);
}

function writeReasons(dropped: Record<string, number>): string {
  const parts = Object.entries(dropped).map(([reason, count]) => `${reason} ${writeCount(count)}`);
  return parts.length ? ` (${parts.join(", ")})` : "";
}

