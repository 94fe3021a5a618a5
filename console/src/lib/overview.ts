/** The overview of a model: what is asked, and its charts, each part of which is a link to what it counts. */

import { get, path } from "./api.ts";
import { colourClass } from "./colours.ts";
import { quoteText } from "./cql.ts";
import { withQuery } from "./answers.svelte.ts";
import { EMPTY_LINK, formatLink, type Link } from "./router.svelte.ts";
import { readSpan, writeCount, writeEdge, writeMilliseconds } from "./format.ts";
import { askSome } from "./questions.ts";
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
function toExplore({ model, time }: Link, filter = "", bar?: Bar): string {
  const own = bar ? `${bar.received_from}..${bar.received_to}` : time;
  return formatLink({ ...EMPTY_LINK, model, time: own, filter });
}

export interface Chart {
  title: string;
  label: string;
  columns: Column[];
  edges: readonly [string, string];
  /** What is said while no part is pointed at. */
  about: string;
  legend: { name: string; value: string; href: string; colour: string }[];
  /** A number beside its axis, and where that ends; left out: above the highest column. */
  write: (value: number) => string;
  top?: number;
}

const writeNumber = (value: number) => writeCount(value);

type MakePart = (bar: Bar, value: number, words: string, filter: string, colour: string) => Part;

/** The charts that have something to show. */
export function makeCharts(link: Link, overview: Overview, classes: string[]): Chart[] {
  const { bars, scores, inferences, errors, latency } = overview;
  const span = Date.parse(overview.received_to ?? "") - Date.parse(overview.received_from ?? "");
  const write = (at: string | null) => (at ? writeEdge(Date.parse(at), span) : "");
  const part: MakePart = (bar, value, words, filter, colour) => {
    return { value, title: `${write(bar.received_from)}: ${words}`, href: toExplore(link, filter, bar), colour };
  };
  const edges = [write(overview.received_from), write(overview.received_to)] as const;
  const charts: Chart[] = [
    {
      title: "Inferences and errors", about: "", label: "Inferences and errors over time", edges, write: writeNumber,
      columns: bars.map((bar) => countBar(bar, part)),
      legend: [
        { name: "inferences", value: writeCount(inferences), href: toExplore(link), colour: "plain" },
        { name: "errors", value: writeCount(errors), href: toExplore(link, "NOT ok"), colour: "bad" },
      ],
    },
    {
      title: "Latency", about: "", label: "Latency over time", edges, write: writeMilliseconds,
      columns: bars.map((bar) => timeBar(bar, part)),
      legend: latency ? PERCENTILES.map(([name, colour]) => {
        return { name, value: writeMilliseconds(latency[name]), href: toExplore(link, `model_ms >= ${latency[name]}`), colour };
      }) : [],
    },
    { ...mixLabels(link, overview, classes, part), edges },
    {
      title: "Top scores", about: "score of the top label", label: "Inferences by top score", write: writeNumber, legend: [],
      columns: binScores(link, scores),
      edges: [String(scores[0]?.low), String(scores.at(-1)?.high)],
    },
    { ...mixScores(link, overview, part), edges },
  ];
  return charts.filter(({ columns }) => columns.some((column) => column.length));
}

const PERCENTILES = [["p50", "deep"], ["p95", "plain"], ["p99", "pale"]] as const;

function countBar(bar: Bar, part: MakePart): Column {
  return [
    part(bar, bar.errors, writeCount(bar.errors, "error"), "NOT ok", "bad"),
    part(bar, bar.inferences - bar.errors, writeCount(bar.inferences, "inference"), "", "plain"),
  ];
}

function timeBar(bar: Bar, part: MakePart): Column {
  if (!bar.latency) return [];
  const { p50, p95, p99 } = bar.latency;
  return [
    part(bar, p50, `p50 ${writeMilliseconds(p50)}`, `model_ms <= ${p50}`, "deep"),
    part(bar, p95 - p50, `p95 ${writeMilliseconds(p95)}`, `model_ms > ${p50} AND model_ms <= ${p95}`, "plain"),
    part(bar, p99 - p95, `p99 ${writeMilliseconds(p99)}`, `model_ms > ${p95}`, "pale"),
  ];
}

function mixLabels(link: Link, { bars, labels, other_labels: others }: Overview, classes: string[], part: MakePart) {
  const named = labels.map(({ label, inferences }) => ({
    name: label,
    inferences,
    filter: `top_label = ${quoteText(label)}`,
    colour: colourClass(label, classes),
  }));
  const elsewhere = `top_label NOT IN (${labels.map(({ label }) => quoteText(label)).join(", ")})`;
  const all = others ? [...named, { name: "other labels", inferences: others, filter: elsewhere, colour: "hue-none" }] : named;
  const sum = all.reduce((total, { inferences }) => total + inferences, 0);
  const columns = bars.map((bar) => {
    const counts = [...bar.labels, bar.other_labels];
    const whole = counts.reduce((total, count) => total + count, 0) || 1;
    return all.map(({ name, filter, colour }, number) => {
      const share = (counts[number] ?? 0) / whole;
      return part(bar, share, `${name} ${writeShare(share)}`, filter, colour);
    });
  });
  const legend = all.map(({ name, inferences, filter, colour }) => ({ name, value: writeShare(inferences / sum), href: toExplore(link, filter), colour }));
  return { title: "Top labels", about: "share of inferences with a top label", label: "Shares of the top labels over time", columns, legend, write: writeShare, top: 1 };
}

const BANDS = ["pale", "soft", "plain", "deep"] as const;

/** The shares of a few bands of scores, the lowest first. */
function mixScores(link: Link, { bars, scores }: Overview, part: MakePart) {
  const size = Math.ceil(scores.length / BANDS.length) || 1;
  const bands = BANDS.flatMap((colour, number) => {
    const bins = scores.slice(number * size, (number + 1) * size);
    const [first, last] = [bins[0], bins.at(-1)];
    return first && last ? [{ colour, first, last, filter: writeRange(first.low, last.high, last === scores.at(-1)) }] : [];
  });
  const columns = bars.map((bar) => {
    const whole = bar.scores.reduce((total, count) => total + count, 0) || 1;
    return bands.map(({ colour, first, last, filter }, number) => {
      const share = bar.scores.slice(number * size, (number + 1) * size).reduce((total, count) => total + count, 0) / whole;
      return part(bar, share, `${first.low} – ${last.high} ${writeShare(share)}`, filter, colour);
    });
  });
  const legend = bands.map(({ colour, first, last, filter }) => ({ name: `${first.low} – ${last.high}`, value: "", href: toExplore(link, filter), colour }));
  return { title: "Top scores over time", about: "share of inferences with a top score", label: "Shares of the top scores over time", columns, legend, write: writeShare, top: 1 };
}

function writeRange(low: number, high: number, isLast: boolean): string {
  return `top_score >= ${low} AND top_score ${isLast ? "<=" : "<"} ${high}`; // the last one has its end in it
}

function binScores(link: Link, scores: Overview["scores"]): Column[] {
  return scores.map(({ low, high, inferences }, number) => {
    const href = toExplore(link, writeRange(low, high, number === scores.length - 1));
    return [{ value: inferences, title: `${low} – ${high}: ${writeCount(inferences, "inference")}`, href, colour: "plain" }];
  });
}

interface Figure {
  name: string;
  value: string;
  href: string;
}

export function listFigures(link: Link, { inferences, errors, predicted, latency, estimated, captured: books }: Overview): Figure[] {
  const percentiles = latency ? PERCENTILES.map(([at]) => ({
    name: `${at} latency`,
    value: `${estimated ? "≈ " : ""}${writeMilliseconds(latency[at])}`,
    href: toExplore(link, `model_ms >= ${latency[at]}`),
  })) : [];
  const missed = Object.values(books?.missed ?? {}).reduce((sum, calls) => sum + calls, 0);
  const decided = (books?.captured ?? 0) + missed;
  return [
    { name: "inferences", value: writeCount(inferences), href: toExplore(link) },
    { name: writeCount(errors, "error"), value: writeShare(errors / inferences), href: toExplore(link, "NOT ok") },
    { name: "with predictions", value: writeShare(predicted / inferences), href: toExplore(link, "prediction_count > 0") },
    ...percentiles,
    ...(books && decided ? [{
      name: "captured, all models",
      value: writeWhole(books.captured / decided),
      href: formatLink({ ...EMPTY_LINK, list: "accounting" }),
    }] : []),
  ];
}

function writeShare(share: number): string {
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

/** A share that is called whole only if it is. */
function writeWhole(share: number): string {
  return share < 1 && share > 0.99 ? `${(Math.floor(1e4 * share) / 100).toFixed(2)} %` : writeShare(share);
}

interface Concern {
  title: string;
  href: string;
  isGrave: boolean;
}

/** What needs attention, each with where it is looked after. */
export function listConcerns(link: Link, overview: Overview): Concern[] {
  const list = (name: string, search = "") => formatLink({ ...EMPTY_LINK, list: name, search });
  const { dead_letters: letters, parked_events: parked, captured: books, errors, problems } = overview;
  const ofModel = new URLSearchParams({ model: link.model }).toString();
  return [
    ...(letters ? [{ title: writeCount(letters, "dead letter"), href: list("dead-letters", ofModel), isGrave: true }] : []),
    ...(parked ? [{ title: `${writeCount(parked, "event")} waiting for an object`, href: list("accounting"), isGrave: false }] : []),
    ...Object.entries(books?.missed ?? {}).map(([why, calls]) => ({
      title: `${writeCount(calls, "call")} of all models not captured: ${why.replaceAll("_", " ")}`,
      href: list("accounting"),
      isGrave: false,
    })),
    ...(errors ? [{ title: writeCount(errors, "error"), href: toExplore(link, "NOT ok"), isGrave: true }] : []),
    ...problems.map(({ property, value, inferences }) => ({
      title: `${writeCount(inferences, "inference")} with ${property.replace("_", " ")}: ${value.replaceAll("_", " ")}`,
      href: toExplore(link, `${property} = ${quoteText(value)}`),
      isGrave: false,
    })),
  ];
}
