// Asks a coordinator, and turns its refusals into errors for people.

/** An answer other than success: its message is written for people. */
export class Refusal extends Error {
  /**
   * @param {number} status the HTTP status, 0 within an event stream
   * @param {string} code as in NOT_FOUND
   * @param {string} message
   */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }

  /** Whether the reader lacks the right: trying again soon will not help. */
  get denied() {
    return this.status === 401 || this.status === 403
      || this.code === "PERMISSION_DENIED" || this.code === "UNAUTHENTICATED";
  }
}

/**
 * Makes the error of a response that is none of success.
 * @param {Response} response
 * @returns {Promise<Refusal>}
 */
export async function refusalOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const { code, message } = JSON.parse(text);
    return new Refusal(response.status, code ?? "", message || `HTTP ${response.status}`);
  } catch {
    // Not from a coordinator: a proxy between, perhaps.
    const short = text.trim().slice(0, 300);
    return new Refusal(response.status, "", short || `HTTP status ${response.status}`);
  }
}

/** The questions that the page asks beside its streams of events. */
export class Api {
  /** @param {() => string} base where to ask: empty for the page's own origin */
  constructor(base) {
    this.base = base;
  }

  /**
   * The explanation of something.
   * @param {import("./router.js").Target} target
   * @param {AbortSignal} signal
   */
  async explain({ kind, names }, signal) {
    const [first, second] = names;
    const query = {
      cluster: { cluster: first },
      worker: { cluster: first, worker: second },
      stream: { set: first, stream: second },
      pipeline: { name: first },
    }[kind];
    const answer = await this.#get(`explain/${kind}`, query, signal);
    return answer.explanation ?? {};
  }

  /**
   * A page of a set's streams.
   * @param {Object<string, string|number|boolean>} query
   * @param {AbortSignal} signal
   */
  streams(query, signal) {
    return this.#get("streams", query, signal);
  }

  /**
   * What would be planned; changes nothing.
   * @param {object} request a PlanRequest
   * @param {AbortSignal} signal
   */
  plan(request, signal) {
    // As plain text: a content type of JSON would need a preflight at another replica.
    return this.#ask("plan", { method: "POST", body: JSON.stringify(request) }, signal);
  }

  #get(path, query, signal) {
    const text = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      if (value !== "" && value !== false && value !== undefined) text.set(name, String(value));
    }
    return this.#ask(`${path}?${text}`, {}, signal);
  }

  async #ask(path, options, signal) {
    const late = AbortSignal.timeout(10_000);
    let response;
    try {
      response = await fetch(`${this.base()}/api/v1/${path}`, {
        ...options,
        cache: "no-store",
        signal: signal ? AbortSignal.any([signal, late]) : late,
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Refusal(0, "UNREACHABLE", "The coordinator did not answer. Ask again in a moment.");
    }
    if (!response.ok) throw await refusalOf(response);
    return response.json();
  }
}
