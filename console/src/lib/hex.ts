/** Bytes as people look at them: offset, hexadecimal, and what is printable. */

const WIDTH = 16;
export const MOST_BYTES = 4096;

/** How many bytes a text in base64 has. */
export function measureBase64(text: string): number {
  return Math.floor((text.length * 3) / 4) - (text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0);
}

/** The first bytes of a text in base64. */
export function decodeBase64(text: string, most = MOST_BYTES): Uint8Array {
  const binary = atob(text.slice(0, Math.ceil(most / 3) * 4));
  return Uint8Array.from(binary.slice(0, most), (letter) => letter.charCodeAt(0));
}

export function writeHex(bytes: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < bytes.length; at += WIDTH) {
    const row = [...bytes.slice(at, at + WIDTH)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const hex = `${digits.slice(0, 8).join(" ")}  ${digits.slice(8).join(" ")}`.padEnd(WIDTH * 3 + 1);
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex} ${text}`);
  }
  return lines.join("\n");
}
