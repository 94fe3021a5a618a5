/** Spans of time: chosen, asked of the API, and written for people. */

export interface Span {
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
