/**
 * What arrives now. A browser has six connections to a server, so there is one stream for all its
 * windows, held by a lock, and none for a hidden tab. Windows with the same question share it.
 */

import { path, Problem, readStream } from "./api.ts";
import type { Link } from "./router.svelte.ts";
import { readSpan } from "./format.ts";

const LOCK = "inference-store-live";
const PAUSE_MS = 5000;
/** The api sends a sign of life every ten seconds. */
const SILENT_MS = 30_000;

type LiveState = "off" | "connecting" | "on" | "elsewhere";

export class Live {
  state = $state<LiveState>("off");
  problem = $state.raw<Problem | null>(null);
  #question = "";
  #current: AbortController | null = null;
  #again: ReturnType<typeof setTimeout> | undefined;
  readonly #channel = new BroadcastChannel(LOCK);
  readonly #onarrive: (count: number) => void;

  constructor(onarrive: (count: number) => void) {
    this.#onarrive = onarrive;
    this.#channel.onmessage = ({ data }) => {
      const isOurs = this.state === "elsewhere" && data.question === this.#question;
      if (isOurs && !document.hidden) this.#onarrive(data.count);
    };
  }

  /** Follows a question from now on, in place of an earlier one. */
  follow(link: Link): void {
    this.#question = buildPath(link);
    this.problem = null;
    this.#begin();
  }

  stop(): void {
    this.#release();
    this.state = "off";
  }

  /** Ends for good. */
  close(): void {
    this.stop();
    this.#channel.close();
  }

  /** Follows again when the tab is seen again; a hidden one lets go. */
  turn(isShown: boolean): void {
    if (this.state === "off") return;
    if (isShown) this.#begin();
    else this.#release();
  }

  #release(): void {
    clearTimeout(this.#again);
    this.#current?.abort();
    this.#current = null;
  }

  #begin(): void {
    this.#release();
    this.state = "connecting";
    if (document.hidden) return;
    const current = new AbortController();
    this.#current = current;
    const stream = () => this.#stream(current);
    // The newest window takes the lock from the one that has it. Without https there are no locks.
    const held = navigator.locks ? navigator.locks.request(LOCK, { steal: true }, stream) : stream();
    held.catch(() => {
      if (this.#current !== current) return;
      this.#release();
      this.state = "elsewhere";
    });
  }

  async #stream(current: AbortController): Promise<void> {
    const question = this.#question;
    let silent: ReturnType<typeof setTimeout> | undefined;
    try {
      const stream = await readStream(question, current.signal);
      const wait = () => {
        clearTimeout(silent);
        silent = setTimeout(() => current.abort(), SILENT_MS);
      };
      wait();
      for await (const event of readEvents(stream)) {
        wait();
        if (event && this.#current === current) this.#take(event.name, JSON.parse(event.data));
        if (this.state === "off") return;
      }
      this.#later(current);
    } catch (fault) {
      const problem = fault instanceof Problem && !fault.passes ? fault : null;
      if (problem && this.#current === current) this.#refuse(problem);
      else this.#later(current);
    } finally {
      clearTimeout(silent);
    }
  }

  #take(name: string, data: { items?: unknown[]; title?: string; detail?: string; status?: number }): void {
    if (name === "end") return this.#refuse(new Problem(data.status ?? 0, data.title ?? "", data.detail ?? ""));
    this.state = name === "problem" ? "connecting" : "on";
    const count = data.items?.length ?? 0;
    if (!count && name !== "begin") return;
    this.#channel.postMessage({ question: this.#question, count });
    this.#onarrive(count); // of `begin` with 0: what came while nothing was followed is not in the stream
  }

  #refuse(problem: Problem): void {
    this.stop();
    this.problem = problem;
  }

  /** Connects again after a pause, if this is still wanted. */
  #later(current: AbortController): void {
    if (this.#current !== current || this.state === "off") return;
    this.state = "connecting";
    this.#again = setTimeout(() => this.#begin(), PAUSE_MS);
  }
}

/** Whether the time of a link has no end, so that something can arrive in it. */
export function canFollow(link: Link): boolean {
  return readSpan(link.time).to === null;
}

function buildPath({ model, filter }: Link): string {
  const query = filter ? `?${new URLSearchParams({ filter })}` : "";
  return `${path("models", model, "inferences", "follow")}${query}`;
}

interface ServerEvent {
  name: string;
  data: string;
}

/** Yields the events of a stream; a comment keeps it alive and is no event. */
async function* readEvents(stream: ReadableStream<BufferSource>): AsyncGenerator<ServerEvent | null> {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) yield readEvent(block);
    }
  } finally {
    void reader.cancel().catch(() => {});
  }
}

function readEvent(block: string): ServerEvent | null {
  let name = "message";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? { name, data: data.join("\n") } : null;
}
