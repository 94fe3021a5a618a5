/** Lengths of time as people read them. */

const UNITS: [seconds: number, name: string][] = [
  [86_400, "day"],
  [3600, "hour"],
  [60, "minute"],
  [1, "second"],
];

/** `2 hours`: in the largest unit of which there is one at least. */
export function writeDuration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const [size, name] = UNITS.find(([unit]) => whole >= unit) ?? [1, "second"];
  const count = Math.round(whole / size);
  return `${count} ${name}${count === 1 ? "" : "s"}`;
}

const ISO = /^P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?$/;
const NAMES = ["year", "month", "week", "day", "hour", "minute", "second"];

/** A duration of a policy, such as `P30D`, as `30 days`; what is not known stays as it is. */
export function readPeriod(text: string): string {
  if (text === "forever") return "forever";
  const parts = ISO.exec(text)?.slice(1) ?? [];
  const words = parts.flatMap((count, number) => (count ? [`${count} ${NAMES[number]}${count === "1" ? "" : "s"}`] : []));
  return words.join(" ") || text;
}
