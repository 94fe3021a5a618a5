/** Replays: how the API shows them, and how they are asked for. */

import { path } from "./api.ts";
import { quoteText } from "./cql.ts";
import { EMPTY_LINK, type Link } from "./router.svelte.ts";
import { askPage, buildConditions } from "./questions.ts";
import { writeCount } from "./format.ts";
import type { Inference, Schemas } from "./types.ts";

export type Replay = Schemas["Replay"];
export type Difference = Schemas["ReplayItem"];

export const STATES: Record<string, string> = {
  pending: "Requested. The retention service starts it within seconds.",
  listing: "Listing what matches.",
  sending: "Sending requests, and comparing the answers as they arrive.",
  done: "Everything was sent and compared.",
  failed: "The replay failed.",
  cancelling: "Nothing more is sent.",
  cancelled: "It was cancelled. What was sent before stays.",
  expired: "It is over.",
};

export const REASONS: Record<string, string> = {
  not_kept: "request not kept",
  input_gone: "input erased or missing",
  too_large: "too large",
  unreadable: "unreadable",
  protocol: "protocol not supported",
  version: "protocol names no version",
};

const UNFINISHED = ["pending", "listing", "sending"];
const SOON_MS = 1500;

export const mayCancel = ({ state }: Replay) => UNFINISHED.includes(state);
export const mayRestart = ({ state, erased_by }: Replay) => !UNFINISHED.includes(state) && state !== "cancelling" && !erased_by;
export const findPause = ({ state }: Replay) => (UNFINISHED.includes(state) || state === "cancelling" ? SOON_MS : null);

export function writeWhat({ filter, erased_by }: Replay): string {
  return filter ?? (erased_by ? "a filter whose values an erasure took" : "everything");
}

export function writeTarget({ to }: Replay): string {
  return to.version ? `${to.model}, version ${to.version}` : to.model;
}

export interface Draft {
  to: string;
  version: string;
  sample: number;
  most: number;
  rate: number;
}

/** What the API takes; a share of 100 is everything. */
export function buildReplay(of: Link, { to, version, sample, most, rate }: Draft): Record<string, unknown> {
  return { ...buildConditions(of), to: { model: to, ...(version && { version }) }, sample: sample / 100, most, rate };
}

export function findPath(model: string, ...more: string[]): string {
  return path("models", model, "replays", ...more);
}

interface Sides<T> {
  before: T;
  after: T;
}

/** What the API has in `difference`. */
interface Found {
  ok: Sides<boolean> & { flipped: boolean };
  label: Sides<string | null> & { flipped: boolean };
  boxes: { matched: number; lost: number; new: number } | null;
  values: { compared: number; different: number } | null;
  texts: { compared: number; different: number } | null;
}

/** In words: what an inference and its replay disagree in. */
export function describe({ difference }: Difference): string {
  if (!difference) return "";
  const { ok, label, boxes, values, texts } = difference as unknown as Found;
  const words = [
    ok.flipped && (ok.after ? "Succeeds now" : "Fails now"),
    label.flipped && `${label.before ?? "no label"} → ${label.after ?? "no label"}`,
    boxes && boxes.lost + boxes.new > 0 && `boxes: ${writeCount(boxes.lost)} lost, ${writeCount(boxes.new)} new`,
    values?.different && `${writeCount(values.different, "other value")}`,
    texts?.different && `${writeCount(texts.different, "other text")}`,
  ];
  return words.filter(Boolean).join(", ") || "Same result";
}

/** The inferences of a model with these uids. */
export async function askSome(model: string, uids: string[], signal: AbortSignal): Promise<Map<string, Inference>> {
  if (!uids.length) return new Map();
  const filter = `uid IN (${uids.map(quoteText).join(", ")})`;
  const page = await askPage({ ...EMPTY_LINK, model, filter }, null, signal, uids.length);
  return new Map(page.items.map((item) => [item.uid, item]));
}
