/** A colour for each label: by its position among the model's labels, else by its letters. */

const HUES = 10;

export function colourClass(label: string | null, labels: string[] = []): string {
  if (label === null) return "hue-none";
  const index = labels.indexOf(label);
  return `hue-${(index >= 0 ? index : hash(label)) % HUES}`;
}

function hash(text: string): number {
  let sum = 2166136261;
  for (const letter of text.slice(0, 256)) {
    sum = Math.imul(sum ^ (letter.codePointAt(0) ?? 0), 16777619) >>> 0;
  }
  return sum;
}
