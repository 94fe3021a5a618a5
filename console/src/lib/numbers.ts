/** Numbers as people read them. */

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
