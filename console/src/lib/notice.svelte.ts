/** Words about what was just done, shown for a moment. */

const SHOWN_MS = 2500;

export class Notice {
  words = $state("");
  #later: ReturnType<typeof setTimeout> | undefined;

  /** Shows words for their whole time, also if others were shown just before. */
  show(words: string): void {
    clearTimeout(this.#later);
    this.words = words;
    this.#later = setTimeout(() => (this.words = ""), SHOWN_MS);
  }

  /** Copies a text, and says so, or that the browser refuses. */
  async copy(text: string, words = "Copied"): Promise<void> {
    try {
      await navigator.clipboard.writeText(text);
      this.show(words);
    } catch {
      this.show("Your browser does not allow copying here");
    }
  }
}
