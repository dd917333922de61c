/** See HELP. */

import { once } from "node:events";
import { mkdir, rename, writeFile } from "node:fs/promises";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { Worker, type Binding } from "leasehold";

const HELP = `Serves the nodes of a pipeline over HTTP: receive, parse and index.

Usage: node worker.js PORT FOLDER

A document, {"id": ..., "text": ...}, is posted to /PIPELINE/NODE of a worker that serves the
node. The answer is 204 once all nodes from this one on have processed it, and FOLDER/ID.json has
it. After a 503 post it again: a document that comes twice is stored once. SIGTERM drains the
worker.

Example, with an agent:

    leasehold-agent run ... --cluster parse --worker-address 127.0.0.1:8082 -- \\
        node worker.js 8082 out
`;

// How long a document waits for a worker of the next node, and how often that is tried.
const FORWARD_MS_MAX = 30_000;
const RETRY_MS = 100;
const BODY_BYTES_MAX = 1 << 20;

interface Document {
  readonly id: string;
  readonly text: string;
  readonly words?: readonly string[];
}

/** What each node does with a document. */
type Step = (document: Document) => Document | Promise<Document>;

function steps(folder: string): Readonly<Record<string, Step>> {
  return {
    receive: (document) => ({ id: document.id, text: document.text.trim() }),
    parse: (document) => ({ ...document, words: document.text.toLowerCase().match(/\w+/g) ?? [] }),
    index: async (document) => {
      // Renamed, so that a reader finds no half of it.
      const file = join(folder, `${document.id}.json`);
      const part = `${file}.${process.pid}.part`;
      await writeFile(part, JSON.stringify(document));
      await rename(part, file);
      return document;
    },
  };
}

/** A share of a node that this worker serves, and the documents that it has not answered yet. */
interface Served {
  readonly binding: Binding;
  readonly open: Set<Promise<void>>;
}

class Service {
  readonly #steps: Readonly<Record<string, Step>>;
  readonly #served = new Map<string, Served>();

  constructor(folder: string) {
    this.#steps = steps(folder);
  }

  /** Serves a share until it is revoked or lost, and answers what has arrived by then. */
  async serve(binding: Binding): Promise<void> {
    const served: Served = { binding, open: new Set() };
    const { stopping } = binding;
    this.#served.set(pathOf(binding, binding.node), served);
    if (!stopping.aborted) {
      await once(stopping, "abort");
    }
    this.#served.delete(pathOf(binding, binding.node));
    await Promise.allSettled(served.open);
  }

  /** Answers a request. */
  async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let document: Document;
    try {
      document = await read(request);
    } catch (error) {
      response.writeHead(400).end(`${error}\n`);
      return;
    }
    const served = this.#served.get(request.url ?? "");
    if (request.method !== "POST" || served === undefined) {
      // The sender asks its agent for another worker.
      response.writeHead(503).end("this worker does not serve that\n");
      return;
    }
    const work = this.#process(served.binding, document);
    served.open.add(work);
    try {
      await work;
      response.writeHead(204).end();
    } catch (error) {
      response.writeHead(503).end(`${error}\n`);
    } finally {
      served.open.delete(work);
    }
  }

  async #process(binding: Binding, document: Document): Promise<void> {
    const step = this.#steps[binding.node];
    if (step === undefined) {
      throw new Error(`no step is called ${binding.node}: use receive, parse or index`);
    }
    const result = await step(document);
    for (const { node } of binding.next) {
      await forward(binding, node, result);
    }
  }
}

/** Where a worker serves a node of a binding's pipeline. */
function pathOf(binding: Binding, node: string): string {
  return `/${encodeURIComponent(binding.pipeline)}/${node}`;
}

/** Reads a document. Throws an Error for what is none. */
async function read(request: IncomingMessage): Promise<Document> {
  let body = "";
  for await (const part of request.setEncoding("utf8")) {
    body += part;
    if (body.length > BODY_BYTES_MAX) {
      throw new RangeError(`a document has at most ${BODY_BYTES_MAX} characters`);
    }
  }
  const { id, text, words } = JSON.parse(body) as Document;
  if (typeof id !== "string" || !/^[\w-]+$/.test(id) || typeof text !== "string") {
    throw new TypeError('expected {"id": ..., "text": ...}, the id of letters, digits, _ and -');
  }
  return words === undefined ? { id, text } : { id, text, words };
}

/** Sends a document to a worker of the next node: to another one after a failure. */
async function forward(binding: Binding, node: string, document: Document): Promise<void> {
  const deadline = AbortSignal.timeout(FORWARD_MS_MAX);
  const request = { method: "POST", body: JSON.stringify(document), signal: deadline };
  for (;;) {
    // Undefined while no worker serves the node, as after the loss of one.
    const to = binding.pick(node);
    if (to !== undefined) {
      const url = `http://${to.address}${pathOf(binding, node)}`;
      const answer = await fetch(url, request).catch(() => undefined);
      if (answer?.ok) {
        return;
      }
      await answer?.body?.cancel();
    }
    await sleep(RETRY_MS, undefined, { signal: deadline });
  }
}

async function main(port: number, folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  const service = new Service(folder);
  const server = createServer((request, response) => void service.answer(request, response));
  await using worker = new Worker();
  await once(server.listen(port), "listening");
  const bindings = worker.runBindings((binding) => service.serve(binding));
  // The agent sends it after the drain. A worker that ended with the drain would be started again.
  await once(process, "SIGTERM");
  if (!worker.draining) {
    await worker.drain();
  }
  await bindings;
  server.close();
  server.closeAllConnections();
}

const [port, folder, ...others] = process.argv.slice(2);
if (port === "-h" || port === "--help") {
  console.log(HELP);
} else if (folder === undefined || others.length > 0 || !Number(port)) {
  console.error(HELP);
  process.exitCode = 2;
} else {
  await main(Number(port), folder);
}
