// The chat: sends the conversation to /v1/chat/completions and shows the answer as it comes.

import { byId, html, say, set } from "./dom.mjs";
import { count, duration, figure } from "./format.mjs";
import { headers } from "./key.mjs";
import { events, refusal } from "./sse.mjs";

const NEAR_THE_END = 60; // pixels: who reads further up is not scrolled away

/** The chat panel. wantKey is called when the server refuses for want of a key. */
export class Chat {
  #messages = [];
  #abort = null;
  #wantKey;
  #transcript = byId("transcript");
  #input = byId("chat-input");

  constructor(wantKey) {
    this.#wantKey = wantKey;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    byId("chat-stop").addEventListener("click", () => this.#abort?.abort());
    byId("chat-reset").addEventListener("click", () => {
      this.#reset();
      this.#input.focus();
    });
    this.#transcript.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#abort?.abort();
    });
    this.#reset();
  }

  #reset() {
    this.#abort?.abort();
    this.#messages = [];
    const invitation = "Ask the model something: the ring shows what happens.";
    this.#transcript.replaceChildren(html("p", { class: "empty" }, invitation));
  }

  async #send() {
    const text = this.#input.value.trim();
    if (!text || this.#abort) return;
    if (!this.#messages.length) this.#transcript.replaceChildren();
    this.#input.value = "";
    this.#messages.push({ role: "user", content: text });
    this.#transcript.append(bubble("user", "You", text).node);
    const answer = bubble("assistant", "Model", "");
    this.#transcript.append(answer.node);
    this.#busy(true);
    const conversation = this.#messages;
    const end = await this.#ask(conversation, answer);
    if (end.text) conversation.push({ role: "assistant", content: end.text });
    else conversation.pop(); // so that the next message is not the second in a row
    say(answer.note, end.note);
    set(answer.node, { "data-failed": end.failed, "aria-busy": null });
    this.#busy(false);
    this.#follow();
  }

  /** Ask for an answer and show it: {text, note, failed}. Never raises. */
  async #ask(conversation, answer) {
    this.#abort = new AbortController();
    const told = new Told();
    try {
      const response = await fetch("v1/chat/completions", {
        method: "POST",
        headers: headers({ "Content-Type": "application/json" }),
        body: JSON.stringify(request(conversation)),
        signal: this.#abort.signal,
      });
      if (!response.ok) return this.#refused(response, await refusal(response));
      for await (const event of events(response.body)) {
        if (event.data === "[DONE]") break;
        told.take(JSON.parse(event.data));
        say(answer.text, told.text);
        this.#follow();
      }
      return told.end("");
    } catch (error) {
      if (error.name === "AbortError") return told.end("stopped");
      return told.fail("the connection to the server broke");
    }
  }

  #refused(response, why) {
    if (response.status === 401 || response.status === 403) this.#wantKey();
    return { text: "", note: why, failed: true };
  }

  #busy(busy) {
    const focused = document.activeElement;
    if (!busy) this.#abort = null;
    set(byId("chat-send"), { hidden: busy });
    set(byId("chat-stop"), { hidden: !busy });
    // A button that vanishes under the keyboard's focus would leave it nowhere.
    if (focused === byId("chat-send")) byId("chat-stop").focus();
    if (focused === byId("chat-stop")) this.#input.focus();
  }

  #follow() {
    const place = this.#transcript;
    const below = place.scrollHeight - place.scrollTop - place.clientHeight;
    if (below < NEAR_THE_END + place.lastElementChild.clientHeight) place.scrollTop = place.scrollHeight;
  }
}

/** What an answer's events have told so far. */
class Told {
  text = "";
  #began = performance.now();
  #first = 0;
  #pieces = 0;
  #usage = null;
  #error = "";
  #reason = "";

  take(chunk) {
    if (chunk.error) this.#error = chunk.error.message ?? "the server failed";
    if (chunk.usage) this.#usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (choice?.finish_reason) this.#reason = choice.finish_reason;
    const piece = choice?.delta?.content;
    if (!piece) return;
    this.#first ||= performance.now();
    this.#pieces += 1;
    this.text += piece;
  }

  end(note) {
    if (this.#error) return this.fail(this.#error);
    const words = [this.#speed(), this.#reason === "length" ? "cut at the limit" : "", note];
    return { text: this.text, note: words.filter(Boolean).join(", "), failed: false };
  }

  fail(why) {
    return { text: this.text, note: why, failed: true };
  }

  #speed() {
    if (!this.#first) return "";
    const tokens = this.#usage?.completion_tokens ?? this.#pieces;
    const seconds = (performance.now() - this.#first) / 1000;
    const speed = tokens > 1 && seconds > 0 ? `, ${figure((tokens - 1) / seconds)} tokens/s` : "";
    return `${count(tokens, "token")}${speed}, first after ${duration((this.#first - this.#began) / 1000)}`;
  }
}

function request(conversation) {
  const system = byId("system").value.trim();
  const limit = Number.parseInt(byId("max-tokens").value, 10);
  const temperature = Number.parseFloat(byId("temperature").value);
  return {
    messages: system ? [{ role: "system", content: system }, ...conversation] : conversation,
    stream: true,
    stream_options: { include_usage: true },
    ...(limit > 0 ? { max_tokens: limit } : {}),
    ...(temperature >= 0 ? { temperature } : {}),
  };
}

function bubble(role, name, content) {
  const text = html("div", { class: "text" }, content);
  const note = html("p", { class: "muted note" });
  const state = { "data-role": role, "aria-busy": role === "assistant" ? "true" : null };
  const heading = html("h3", {}, name);
  const node = html("article", { class: "bubble", "aria-label": name, ...state }, heading, text, note);
  return { node, text, note };
}
