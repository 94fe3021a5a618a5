/** The overview of a model: what is asked, and its charts, each part of which is a link to what it counts. */

import { get, path } from "./api.ts";
import { colourClass } from "./colours.ts";
import { quoteText } from "./cql.ts";
import { withQuery } from "./entries.svelte.ts";
import { EMPTY_LINK, formatLink, type Link } from "./link.ts";
import { writeCount, writeMilliseconds } from "./numbers.ts";
import { askSome } from "./questions.ts";
import { readSpan, writeEdge } from "./times.ts";
import type { Inference, Schemas } from "./types.ts";

export type Overview = Schemas["Overview"];
type Bar = Overview["bars"][number];

export interface Part {
  value: number;
  title: string;
  href: string;
  colour: string;
}
/** The parts of a column, the lowest first. */
export type Column = Part[];

export interface Shown {
  overview: Overview;
  newest: Inference[];
}

export async function askOverview(link: Link, signal: AbortSignal): Promise<Shown> {
  const { from: received_from, to: received_to } = readSpan(link.time);
  const where = withQuery(path("models", link.model, "overview"), { received_from, received_to });
  const overview = await get<Overview>(where, signal);
  const newest = overview.newest.length ? await askSome(link.model, overview.newest, signal) : [];
  return { overview, newest };
}

/** Explore, of the window of the overview or a narrower one. */
export function toExplore({ model, time }: Link, filter = "", bar?: Bar): string {
  const own = bar ? `${bar.received_from}..${bar.received_to}` : time;
  return formatLink({ ...EMPTY_LINK, model, time: own, filter });
}

export function makeCharts(link: Link, overview: Overview, classes: string[]) {
  const { bars, labels } = overview;
  const span = Date.parse(overview.received_to ?? "") - Date.parse(overview.received_from ?? "");
  const write = (at: string | null) => (at ? writeEdge(Date.parse(at), span) : "");
  const part = (bar: Bar, value: number, words: string, filter: string, colour: string): Part => {
    return { value, title: `${write(bar.received_from)}: ${words}`, href: toExplore(link, filter, bar), colour };
  };
  const others = labels.map(({ label }) => quoteText(label)).join(", ");
  return {
    edges: [write(overview.received_from), write(overview.received_to)] as const,
    counts: bars.map((bar) => [
      part(bar, bar.errors, writeCount(bar.errors, "error"), "NOT ok", "bad"),
      part(bar, bar.inferences - bar.errors, writeCount(bar.inferences, "inference"), "", "plain"),
    ]),
    latencies: bars.map((bar) => makeLatency(bar, part)),
    labels: bars.map((bar) => {
      const sum = bar.labels.reduce((total, count) => total + count, bar.other_labels);
      const show = (name: string, count: number) => `${name} ${writeShare(count / sum)}`;
      return [
        ...labels.map(({ label }, number) => {
          const count = bar.labels[number] ?? 0;
          return part(bar, count / sum || 0, show(label, count), isLabel(label), colourClass(label, classes));
        }),
        part(bar, bar.other_labels / sum || 0, show("other labels", bar.other_labels), `top_label NOT IN (${others})`, "hue-none"),
      ];
    }),
    scores: overview.scores.map(({ low, high, inferences }, number, all): Column => {
      const end = number === all.length - 1 ? "<=" : "<"; // the last one has its end in it
      const filter = `top_score >= ${low} AND top_score ${end} ${high}`;
      const title = `${low} – ${high}: ${writeCount(inferences, "inference")}`;
      return [{ value: inferences, title, href: toExplore(link, filter), colour: "plain" }];
    }),
  };
}

export function isLabel(label: string): string {
  return `top_label = ${quoteText(label)}`;
}

export function writeShare(share: number): string {
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

function makeLatency({ latency, ...bar }: Bar, part: (bar: Bar, ...rest: [number, string, string, string]) => Part): Column {
  if (!latency) return [];
  const { p50, p95, p99 } = latency;
  const whole = { latency, ...bar };
  const name = (at: string, value: number) => `${at} ${writeMilliseconds(value)}`;
  return [
    part(whole, p50, name("p50", p50), `model_ms <= ${p50}`, "deep"),
    part(whole, p95 - p50, name("p95", p95), `model_ms > ${p50} AND model_ms <= ${p95}`, "plain"),
    part(whole, p99 - p95, name("p99", p99), `model_ms > ${p95}`, "pale"),
  ];
}

export interface Concern {
  title: string;
  href: string;
  isGrave: boolean;
}

/** What needs attention, each with where it is looked after. */
export function listConcerns(link: Link, overview: Overview): Concern[] {
  const list = (name: string, search = "") => formatLink({ ...EMPTY_LINK, list: name, search });
  const { dead_letters: letters, parked_events: parked, errors, problems } = overview;
  const ofModel = new URLSearchParams({ model: link.model }).toString();
  return [
    ...(letters ? [{ title: writeCount(letters, "dead letter"), href: list("dead-letters", ofModel), isGrave: true }] : []),
    ...(parked ? [{ title: `${writeCount(parked, "event")} waiting for an object`, href: list("accounting"), isGrave: false }] : []),
    ...(errors ? [{ title: writeCount(errors, "error"), href: toExplore(link, "NOT ok"), isGrave: true }] : []),
    ...problems.map(({ property, value, inferences }) => ({
      title: `${writeCount(inferences, "inference")} with ${property.replace("_", " ")}: ${value.replaceAll("_", " ")}`,
      href: toExplore(link, `${property} = ${quoteText(value)}`),
      isGrave: false,
    })),
  ];
}
