// Server-sent events from a fetch. Not EventSource, because that one can neither send a key in a
// header, nor POST, nor say with which status and sentence it was refused.

/** Yield {type, data} for each event of a response's body, until it ends. */
export async function* events(body) {
  const parser = new Parser();
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.take(value);
    }
  } finally {
    reader.cancel().catch(() => {}); // who stops listening ends the request
  }
}

/** Makes events of text that comes in pieces of any size. */
export class Parser {
  #rest = "";
  #type = "";
  #data = [];

  /** Take the next piece; the events that are whole now. */
  take(text) {
    const found = [];
    // A CR at the end may be half of a CR LF.
    const all = this.#rest + text;
    const held = all.endsWith("\r") ? "\r" : "";
    const lines = all.slice(0, all.length - held.length).split(/\r\n|\n|\r/);
    this.#rest = lines.pop() + held;
    for (const line of lines) {
      const event = this.#line(line);
      if (event) found.push(event);
    }
    return found;
  }

  #line(line) {
    if (line === "") return this.#end();
    const colon = line.indexOf(":");
    if (colon === 0) return null; // a comment: the server's sign of life
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.#data.push(value);
    if (field === "event") this.#type = value;
    return null;
  }

  #end() {
    const event = { type: this.#type || "message", data: this.#data.join("\n") };
    const empty = this.#data.length === 0;
    this.#type = "";
    this.#data = [];
    return empty ? null : event;
  }
}

/** The sentence of a response that is no success: OpenAI's shape of errors, or its status. */
export async function refusal(response) {
  try {
    const answer = await response.json();
    return answer.error.message ?? answer.detail ?? `the server answered ${response.status}`;
  } catch {
    return `the server answered ${response.status} ${response.statusText}`.trim();
  }
}
