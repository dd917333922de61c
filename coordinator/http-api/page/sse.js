// Reads server-sent events from a response. EventSource would not say why a coordinator refuses.

/**
 * Calls `onEvent` with each event until the body ends.
 * @param {ReadableStream<Uint8Array>} body
 * @param {(event: {name: string, data: string}) => void} onEvent
 * @returns {Promise<void>}
 */
export async function readEvents(body, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    // An end of line may be "\r\n", cut in two.
    rest += value;
    const held = rest.endsWith("\r") ? "\r" : "";
    const blocks = rest.slice(0, rest.length - held.length)
      .replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop() + held;
    for (const block of blocks) {
      const event = parseBlock(block);
      if (event) onEvent(event);
    }
  }
}

function parseBlock(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [field, value = ""] = line.split(/:(.*)/s);
    if (field === "event") name = value.trimStart();
    if (field === "data") data.push(value.startsWith(" ") ? value.slice(1) : value);
  }
  return data.length === 0 ? null : { name, data: data.join("\n") };
}
