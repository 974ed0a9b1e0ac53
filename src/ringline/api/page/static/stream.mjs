// The ring's events, for as long as the page is open: connects, and connects again.
//
// A stream that says nothing for SILENCE milliseconds is taken for lost, although its connection
// stands: the server sends at least once a second.

import { headers } from "./key.mjs";
import { events, refusal } from "./sse.mjs";

const SILENCE = 8000;
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8000;

/**
 * Listen to /ring/events. Never ends.
 *
 * on.ring and on.log get what was sent; on.connection gets {state, why}: "connecting", "live",
 * "reconnecting", "key" (the server wants one), "refused".
 */
export class RingStream {
  #on;
  #pause = FIRST_PAUSE;
  #wake = () => {};
  #abort = null;

  constructor(on) {
    this.#on = on;
  }

  /** Connect now, for example because there is another key. */
  retry() {
    this.#pause = FIRST_PAUSE;
    this.#abort?.abort();
    this.#wake();
  }

  async run() {
    this.#tell("connecting", "");
    for (;;) {
      const end = await this.#once();
      this.#tell(end.state, end.why);
      await this.#wait(end.state === "key" ? LONGEST_PAUSE * 8 : this.#pause);
      this.#pause = Math.min(LONGEST_PAUSE, this.#pause * 2);
    }
  }

  async #once() {
    const abort = (this.#abort = new AbortController());
    const watch = new Watch(SILENCE, () => abort.abort());
    try {
      const response = await fetch("ring/events", {
        headers: headers({ Accept: "text/event-stream" }),
        signal: abort.signal,
        cache: "no-store",
      });
      if (!response.ok) return await refused(response);
      for await (const event of events(response.body)) {
        watch.renew();
        this.#take(event);
      }
      return { state: "reconnecting", why: "the server ended the stream" };
    } catch {
      return { state: "reconnecting", why: "the server does not answer" };
    } finally {
      watch.end();
      abort.abort();
    }
  }

  #take(event) {
    this.#pause = FIRST_PAUSE;
    try {
      if (event.type === "ring") this.#on.ring(JSON.parse(event.data));
      if (event.type === "log") this.#on.log(JSON.parse(event.data));
    } catch (error) {
      reportError(error); // a fault of the page is not taken for one of the connection
    }
    this.#tell("live", "");
  }

  #tell(state, why) {
    this.#on.connection({ state, why });
  }

  #wait(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** Calls somebody when it has not been renewed for so many milliseconds. */
class Watch {
  #timer = 0;

  constructor(milliseconds, call) {
    this.renew = () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(call, milliseconds);
    };
    this.renew();
  }

  end() {
    clearTimeout(this.#timer);
  }
}

async function refused(response) {
  const why = await refusal(response);
  const wantsKey = response.status === 401 || response.status === 403;
  return { state: wantsKey ? "key" : "refused", why };
}
