/** How right a model was: what is asked, and its figures as people read them. */

import { path, post } from "./api.ts";
import { addCondition, quoteText } from "./cql.ts";
import { buildConditions } from "./questions.ts";
import { EMPTY_LINK, formatLink, type Link } from "./router.svelte.ts";
import { writeCount } from "./format.ts";
import type { Schemas } from "./types.ts";

export type Evaluation = Schemas["Evaluation"];
export type Figure = Schemas["Figure"];
type Slices = NonNullable<Evaluation["slices"]>;

/** What the page asks beside the conditions, as its address has it. */
export const OPTIONS = ["source", "iou", "score"] as const;

export function askEvaluation(link: Link, signal: AbortSignal): Promise<Evaluation> {
  const given = new URLSearchParams(link.search);
  const number = (name: string) => (given.get(name) ? Number(given.get(name)) : undefined);
  const body = { ...buildConditions(link), source: given.get("source") ?? undefined, iou: number("iou"), score: number("score"), group_by: link.group || undefined };
  return post<Evaluation>(path("models", link.model, "inferences", "evaluate"), body, signal);
}

/** Explore, of what a part of the evaluation is about. */
export function toExplore({ model, time, filter }: Link, own: string): string {
  return formatLink({ ...EMPTY_LINK, model, time, filter: addCondition(filter, own) });
}

/** Explore, of the images in which another number of boxes of a label was predicted than there are. */
export function toDiffering(link: Link, label: string): string {
  const own = `(label = ${quoteText(label)})`;
  return toExplore(link, `count_truth${own} <> count_predictions${own}`);
}

/** A share in per cent, any other number to four digits. */
export function writeFigure(value: number | null, isShare = true): string {
  if (value === null) return "–";
  if (isShare) return `${(100 * value).toFixed(1)} %`;
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 20 });
}

export function writeInterval({ interval }: Figure, isShare = true): string {
  if (!interval) return "";
  const [low, high] = interval.map((end) => writeFigure(end, isShare).replace(" %", ""));
  return `${low} to ${high}`;
}

interface Named {
  name: string;
  figure: Figure;
  isShare: boolean;
}

/** A figure that has no interval. */
const alone = (value: number | null, n: number): Figure => ({ value, interval: null, n });

/** The main figures, the most important one first. */
export function listFigures({ labels, boxes, numbers, labelled }: Evaluation): Named[] {
  const share = (name: string, figure: Figure): Named => ({ name, figure, isShare: true });
  const number = (name: string, figure: Figure): Named => ({ name, figure, isShare: false });
  if (boxes) {
    const { ap, ap_50: ap50, ap_75: ap75 } = boxes.average_precision;
    return [
      share("F1", boxes.f1), share("precision", boxes.precision), share("recall", boxes.recall),
      share("AP .50:.95", alone(ap, labelled)), share("AP .50", alone(ap50, labelled)), share("AP .75", alone(ap75, labelled)),
    ];
  }
  if (numbers) {
    const { mae, rmse, bias, r2 } = numbers;
    return [number("mean absolute error", mae), number("RMSE", alone(rmse, mae.n)), number("bias", bias), number("R²", alone(r2, mae.n))];
  }
  if (!labels) return [];
  const { accuracy, macro } = labels;
  return [
    share("accuracy", accuracy), share("macro F1", alone(macro.f1, accuracy.n)),
    share("macro precision", alone(macro.precision, accuracy.n)), share("macro recall", alone(macro.recall, accuracy.n)),
  ];
}

export const FIGURES = { accuracy: "Accuracy", f1: "F1", mae: "Mean absolute error" } as const;

export interface Row {
  name: string;
  href: string;
  labelled: number;
  figure: Figure;
  worse: string;
  tooFew: boolean;
  /** The bar: where it and the interval end, as shares of its track. */
  value: number;
  low: number;
  high: number;
  isWorse: boolean;
}

/** The slices as rows of bars, and where the whole is on their track. */
export function listSlices(link: Link, { items, figure }: Slices, whole: number | null): { rows: Row[]; whole: number | null; isShare: boolean } {
  const isShare = figure !== "mae";
  const ends = items.flatMap(({ figure: { value, interval } }) => [value ?? 0, interval?.[1] ?? 0]);
  const most = isShare ? 1 : Math.max(1e-12, whole ?? 0, ...ends);
  const place = (value: number) => Math.min(1, Math.max(0, value / most));
  const rows = items.map((one) => ({
    name: writeValue(one.value),
    href: one.filter === null ? "" : toExplore(link, one.filter),
    labelled: one.labelled,
    figure: one.figure,
    worse: one.worse === null ? "" : writeWorse(one.worse, isShare),
    tooFew: one.too_few,
    value: place(one.figure.value ?? 0),
    low: place(one.figure.interval?.[0] ?? one.figure.value ?? 0),
    high: place(one.figure.interval?.[1] ?? one.figure.value ?? 0),
    isWorse: !one.too_few && isSurelyWorse(one, whole, isShare),
  }));
  return { rows, whole: whole === null ? null : place(whole), isShare };
}

/** Whether the whole is beyond its interval. */
function isSurelyWorse({ figure: { interval } }: Slices["items"][number], whole: number | null, isShare: boolean): boolean {
  if (!interval || whole === null) return false;
  return isShare ? interval[1] < whole : interval[0] > whole;
}

function writeWorse(worse: number, isShare: boolean): string {
  const size = isShare ? `${(100 * Math.abs(worse)).toFixed(1)} points` : writeFigure(Math.abs(worse), false);
  return `${size} ${worse > 0 ? "worse" : "better"}`;
}

function writeValue(value: unknown): string {
  if (value === null) return "no value";
  if (typeof value !== "object") return String(value).slice(0, 120);
  const { from, to } = value as { from: unknown; to: unknown };
  return `${from ?? "…"} to ${to ?? "…"}`;
}

export function writeTruth({ labelled, inferences }: Evaluation): string {
  return `${writeCount(labelled)} of ${writeCount(inferences, "inference")} ${labelled === 1 ? "has" : "have"} ground truth.`;
}
