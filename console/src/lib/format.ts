/** Values as people read them: ids, numbers, times, and any other. */

/** Control characters, and those that have no width or turn the direction of what stands around them. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** An id in which nothing is hidden: two that differ never look the same because of what cannot be seen. */
export function showId<Id extends string | null | undefined>(id: Id): Id {
  return id?.replace(UNSEEN, escapeLetter) as Id;
}

function escapeLetter(letter: string): string {
  return `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;
}

const WHOLE = new Intl.NumberFormat("en");

export function writeCount(count: number, noun?: string): string {
  const plural = noun === undefined ? "" : ` ${noun}${count === 1 ? "" : "s"}`;
  return `${WHOLE.format(count)}${plural}`;
}

export function writeScore(score: number | null): string {
  return score === null ? "–" : score.toFixed(score > 0 && score < 0.01 ? 4 : 2);
}

export function writeMilliseconds(value: number | null): string {
  if (value === null) return "–";
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return `${value.toFixed(value < 10 ? 1 : 0)} ms`;
}

export function writeBytes(size: number | null): string {
  if (size === null) return "–";
  const units = ["B", "kB", "MB", "GB"];
  let left = size;
  let unit = 0;
  while (left >= 1000 && unit < units.length - 1) {
    left /= 1000;
    unit += 1;
  }
  return `${unit && left < 100 ? left.toFixed(1) : Math.round(left)} ${units[unit]}`;
}

interface Span {
  from: string | null;
  to: string | null;
}

export const PRESETS: [name: string, title: string][] = [
  ["", "All time"],
  ["1h", "Last hour"],
  ["24h", "Last 24 hours"],
  ["7d", "Last 7 days"],
  ["30d", "Last 30 days"],
];
const UNITS: Record<string, number> = { m: 60e3, h: 3600e3, d: 86400e3 };

/** The span that a link's `t` means now. */
export function readSpan(text: string): Span {
  const relative = /^(\d{1,4})([mhd])$/.exec(text);
  if (relative) {
    const back = Number(relative[1]) * (UNITS[relative[2] ?? "h"] ?? 0);
    return { from: new Date(Date.now() - back).toISOString(), to: null };
  }
  const [from = "", to = ""] = text.split("..", 2);
  return { from: toInstant(from), to: toInstant(to) };
}

export function writeSpan(from: Date, to: Date): string {
  return `${from.toISOString()}..${to.toISOString()}`;
}

function toInstant(text: string): string | null {
  return Number.isNaN(Date.parse(text)) ? null : text; // as it is: a Date has no microseconds
}

const MINUTES = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" } as const;
const SHORT = new Intl.DateTimeFormat(undefined, MINUTES);
const SECONDS = new Intl.DateTimeFormat(undefined, { ...MINUTES, second: "2-digit" });
const CLOCK = new Intl.DateTimeFormat(undefined, { ...MINUTES, second: "2-digit", year: "numeric" });

export function writeTime(text: string | null): string {
  return text === null ? "–" : CLOCK.format(new Date(text));
}

export function writeShortTime(at: string | Date): string {
  return SHORT.format(new Date(at));
}

export function writeSeconds(at: string): string {
  return SECONDS.format(new Date(at));
}

/** An end of a span: with seconds, if the span is short. */
export function writeEdge(at: number, span: number): string {
  return (span < 600e3 ? SECONDS : SHORT).format(new Date(at));
}

/** Names a link's span for people. */
export function nameSpan(text: string): string {
  const preset = PRESETS.find(([name]) => name === text);
  if (preset) return preset[1];
  const { from, to } = readSpan(text);
  const start = from ? writeShortTime(from) : "the beginning";
  return `${start} – ${to ? writeShortTime(to) : "now"}`;
}

/** An instant as a field of the kind `datetime-local` has it: in local time. */
export function toLocal(instant: string): string {
  const at = new Date(instant);
  if (Number.isNaN(at.valueOf())) return "";
  return new Date(at.valueOf() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export function fromLocal(local: string): string {
  const at = new Date(local);
  return Number.isNaN(at.valueOf()) ? "" : at.toISOString();
}

/** `3 min ago`, and the like. */
export function writeAge(text: string, now = Date.now()): string {
  const seconds = Math.max(0, (now - Date.parse(text)) / 1000);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]] as const) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  }
  return "just now";
}

const LENGTHS: [seconds: number, name: string][] = [
  [86_400, "day"],
  [3600, "hour"],
  [60, "minute"],
  [1, "second"],
];

/** `2 hours`: in the largest unit of which there is one at least. */
export function writeDuration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const [size, name] = LENGTHS.find(([unit]) => whole >= unit) ?? [1, "second"];
  return writeCount(Math.round(whole / size), name);
}

const ISO = /^P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?$/;
const NAMES = ["year", "month", "week", "day", "hour", "minute", "second"];

/** A duration of a policy, such as `P30D`, as `30 days`; what is not known stays as it is. */
export function readPeriod(text: string): string {
  if (text === "forever") return "forever";
  const parts = ISO.exec(text)?.slice(1) ?? [];
  const words = parts.flatMap((count, number) => (count ? [writeCount(Number(count), NAMES[number])] : []));
  return words.join(" ") || text;
}

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;
const MOST_LETTERS = 300;

export function writeCell(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return writeCount(value);
  if (typeof value === "string") return TIME.test(value) ? writeTime(value) : value.slice(0, MOST_LETTERS);
  if (Array.isArray(value)) return value.map(writeCell).join(", ").slice(0, MOST_LETTERS);
  return writeFields(value as Record<string, unknown>).slice(0, MOST_LETTERS);
}

function writeFields(value: Record<string, unknown>): string {
  return Object.entries(value)
    .map(([name, each]) => `${name}: ${writeCell(each)}`)
    .join(", ");
}
