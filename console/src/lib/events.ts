/** Server-sent events of an answer that is read with fetch, which can send a key. */

export interface ServerEvent {
  name: string;
  data: string;
}

/** Yields the events of a stream; a comment keeps it alive and is no event. */
export async function* readEvents(stream: ReadableStream<BufferSource>): AsyncGenerator<ServerEvent | null> {
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
