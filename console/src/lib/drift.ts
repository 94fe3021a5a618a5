/** How two windows of a model differ: what is asked, and what a row says. */

import { path, post } from "./api.ts";
import { fromLocal, readSpan, toLocal, writeCount } from "./format.ts";
import { buildConditions } from "./questions.ts";
import { EMPTY_LINK, formatLink, type Link } from "./router.svelte.ts";
import type { Schemas } from "./types.ts";

export type Drift = Schemas["Drift"];
export type DriftRow = Schemas["DriftRow"];
type Side = "reference" | "current";

/** The window that is compared, and what it is compared with, by their names in a link. */
export const CURRENT: [name: string, title: string][] = [
  ["1h", "Last hour"],
  ["24h", "Last 24 hours"],
  ["7d", "Last 7 days"],
  ["30d", "Last 30 days"],
];
export const REFERENCES: [name: string, title: string][] = [
  ["24h", "The day before"],
  ["7d", "The week before"],
  ["30d", "The 30 days before"],
  ["before", "All before"],
  ["same", "The same time, another filter"],
];
export const USUAL = { current: "24h", reference: "7d" };
const VIEW = "view:";

export interface Windows {
  current: string;
  reference: string;
}

/** The spans of both windows, as a link has them; of a saved view, which has its own, none. */
export function findSpans({ time, reference }: Link): Windows {
  const current = time || USUAL.current;
  const before = reference || USUAL.reference;
  if (before === "same") return { current, reference: current };
  if (before.startsWith(VIEW)) return { current, reference: "" };
  if (before.includes("..")) return { current, reference: before };
  const end = readSpan(current).from ?? new Date().toISOString();
  const length = Date.now() - Date.parse(readSpan(before).from ?? "");
  return { current, reference: `${before === "before" ? "" : new Date(Date.parse(end) - length).toISOString()}..${end}` };
}

/** The ends of a span as fields have them. */
export function readEnds(span: string): [from: string, to: string] {
  const { from, to } = readSpan(span);
  return [from ? toLocal(from) : "", to ? toLocal(to) : ""];
}

export function writeEnds(from: string, to: string): string {
  return `${fromLocal(from)}..${fromLocal(to)}`;
}

export function askDrift(link: Link, signal: AbortSignal): Promise<Drift> {
  const spans = findSpans(link);
  const current = buildConditions({ ...link, time: spans.current });
  const reference = link.reference.startsWith(VIEW)
    ? { view: link.reference.slice(VIEW.length) }
    : buildConditions({ ...link, time: spans.reference, filter: link.against || link.filter });
  return post<Drift>(path("models", link.model, "inferences", "drift"), { reference, current }, signal);
}

const TITLES: Record<string, string> = {
  "NOT ok": "Errors",
  model_ms: "Latency, ms",
  prediction_count: "Predictions of an inference",
  top_label: "Top label",
  label: "Labels",
  top_score: "Top score",
  "prediction.score": "Scores of all predictions",
  "prediction.area": "Area of boxes",
  "prediction.center_x": "Centre of boxes, x",
  "prediction.center_y": "Centre of boxes, y",
  "prediction.aspect": "Width of boxes by height",
};

export function nameRow({ name }: DriftRow): string {
  return TITLES[name] ?? name.replace(/ IS NULL$/, " is missing");
}

const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
const NUMBER = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

function writeShare(share: number): string {
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

/** From what to what: the means, or the shares. */
export function writeMove({ reference, current }: DriftRow): string {
  if (isKnown(reference.mean) && isKnown(current.mean)) return `, mean ${NUMBER.format(reference.mean)} → ${NUMBER.format(current.mean)}`;
  return isKnown(reference.share) && isKnown(current.share) ? `, ${writeShare(reference.share)} → ${writeShare(current.share)}` : "";
}

function isKnown(value: number | null | undefined): value is number {
  return value !== null && value !== undefined;
}

/** How sure it is, in numbers. */
export function listFigures(row: DriftRow): string[] {
  const { p_adjusted: p, psi, psi_critical: critical } = row;
  return [
    `n ${writeCount(row.reference.n)} and ${writeCount(row.current.n)}`,
    ...(isKnown(p) ? [p < 0.0001 ? "p < 0.0001" : `p ${SHORT.format(p)}`] : []),
    ...(isKnown(psi) && isKnown(critical) ? [`PSI ${SHORT.format(psi)}, by chance up to ${SHORT.format(critical)}`] : []),
  ];
}

const MOST_NAMES = 8;

/** The histograms of both windows, as shares. Of many categories, the rare ones are one. */
export function drawRow({ kind, bins, reference, current }: DriftRow) {
  const most = kind === "number" || bins.length <= MOST_NAMES ? bins.length : MOST_NAMES - 1;
  const rest = bins.slice(most);
  const all = rest.length ? [...bins.slice(0, most), { value: null, reference: add(rest, "reference"), current: add(rest, "current") }] : bins;
  const share = (side: Side, of: number) => all.map((bin) => bin[side] / (of || 1));
  const first = bins[0];
  const last = bins.at(-1);
  const write = (value: number | null | undefined) => (isKnown(value) ? NUMBER.format(value) : "");
  const open = (sign: string, bound: number | null | undefined) => `${sign} ${write(bound)}`;
  const [a, b] = [share("reference", reference.n), share("current", current.n)];
  const words = (shares: number[]) => shares.map(writeShare).join(", ");
  return {
    a,
    b,
    label: `Shares of the reference: ${words(a)}. Of the current window: ${words(b)}.`,
    ...(kind === "number" ? {} : { names: all.map(({ value }) => (kind === "share" ? { true: "yes", false: "no" }[value ?? ""] : value) ?? "others") }),
    edges: [write(first?.low) || open("<", first?.high), write(last?.high) || open("≥", last?.low)] as const,
  };
}

function add(bins: DriftRow["bins"], side: Side): number {
  return bins.reduce((sum, bin) => sum + bin[side], 0);
}

/** Explore, of what a row counts in a window. */
export function exploreSide(model: string, row: DriftRow, side: Side): string {
  return formatLink({ ...EMPTY_LINK, model, filter: row[side].filter });
}
