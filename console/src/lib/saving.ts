/** Saves bytes as a file of the reader. */

const LIFE_MS = 60_000;

export function saveFile(name: string, bytes: BlobPart, type = "application/octet-stream"): void {
  const address = URL.createObjectURL(new Blob([bytes], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), LIFE_MS);
}
