// The cards of the picture: one for each stage, and the coordinator's.

import { html, say, set, svg } from "./dom.mjs";
import { bytes, count, figure, layers, percent } from "./format.mjs";

const BAR = 100; // units of a bar's width

/** What a stage's state is called, where colour is not enough. */
export const STATES = { ok: "up", lost: "lost", unknown: "no figures", waiting: "waiting" };

/** A stage: where it is, its layers, how busy, how full; or why it is lost. */
export class StageCard {
  constructor(box) {
    this.title = html("strong", {});
    this.state = html("span", {});
    this.where = html("p", { class: "where" }, html("span", { class: "node" }), html("span", { class: "device" }));
    this.layers = html("p", { class: "layers" });
    this.busy = new Bar("busy", ["busy"]);
    this.memory = new Bar("memory", ["weights", "kv", "other"]);
    this.why = html("p", { class: "why", hidden: true });
    const mark = html("span", { class: "mark", "aria-hidden": "true" });
    const state = html("span", { class: "state" }, mark, this.state);
    const head = html("p", { class: "card-head" }, this.title, state);
    const bars = [this.busy.node, this.memory.node];
    this.node = html("li", { class: "card stage" }, head, this.where, this.layers, ...bars, this.why);
    put(this.node, box);
  }

  /** Show the stage as it is now. */
  show(stage) {
    const lost = stage.state === "lost";
    set(this.node, { "data-state": stage.state, "data-stage": stage.index });
    say(this.title, `Stage ${stage.index}`);
    say(this.state, STATES[stage.state] ?? stage.state);
    const [node, device] = [stage.node || "this machine", stage.device ? ` · ${stage.device}` : ""];
    say(this.where.children[0], node);
    say(this.where.children[1], device);
    set(this.where, { title: node + device });
    const held = stage.n_layers === null ? "" : layers(stage.first_layer, stage.n_layers);
    say(this.layers, [held, stage.has_output && "output"].filter(Boolean).join(" + "));
    set(this.why, { hidden: !lost, title: stage.why || null });
    say(this.why, lost ? reason(stage) : "");
    set(this.busy.node, { hidden: lost });
    set(this.memory.node, { hidden: lost });
    this.busy.show([stage.busy_share ?? 0], percent(stage.busy_share));
    this.memory.show(...memory(stage));
  }
}

/** Why a stage is lost; the card has its node's name already, and little room. */
export function reason({ node, why }) {
  const name = `node ${node}: `;
  return node && why.startsWith(name) ? why.slice(name.length) : why;
}

/** The coordinator: what the whole ring does. */
export class Coordinator {
  constructor(box) {
    this.big = html("strong", { class: "big" });
    this.small = html("p", { class: "muted" });
    const head = html("p", { class: "card-head" }, "Coordinator");
    const speed = html("p", { class: "speed" }, this.big, " tokens/s");
    this.node = put(html("li", { class: "card coordinator" }, head, speed, this.small), box);
  }

  /** Show the whole ring's figures. */
  show(view) {
    say(this.big, figure(view.tokens_per_second));
    const busy = view.slots.filter((slot) => slot.state !== "idle").length;
    const waiting = view.queued ? `, ${view.queued} waiting` : " busy";
    const slots = `${busy} of ${count(view.slots.length, "slot")}${waiting}`;
    say(this.small, view.state === "ready" ? slots : `engine ${view.state}`);
  }
}

/** Shares of memory and their words: the stage's weights and KV cache, and what others use. */
export function memory(stage) {
  const { weight_bytes: weights, kv_bytes: kv, memory_total: total, memory_free: free } = stage;
  if (!total) return [[0, 0, 0], weights ? bytes(weights + kv) : "–"];
  const used = Math.max(total - free, weights + kv);
  const shares = [weights, kv, used - weights - kv].map((size) => size / total);
  const own = `weights ${bytes(weights)}, KV cache ${bytes(kv)}`;
  const words = `${bytes(used)} / ${bytes(total)}`;
  return [shares, words, `${own}, in use ${bytes(used)} of ${bytes(total)}`];
}

/** A name, a thin bar of one or more parts, and words. */
class Bar {
  constructor(name, parts) {
    this.words = html("span", { class: "bar-words" });
    this.parts = parts.map((part) => svg("rect", { class: `part part-${part}`, y: 0, height: 4 }));
    const shape = { viewBox: `0 0 ${BAR} 4`, preserveAspectRatio: "none" };
    const track = svg("rect", { class: "track", width: BAR, height: 4 });
    const picture = svg("svg", { class: "bar", ...shape, "aria-hidden": "true" }, track, ...this.parts);
    const label = html("span", { class: "bar-name" }, name);
    this.node = html("div", { class: "measure" }, label, this.words, picture);
  }

  show(shares, words, title = null) {
    let x = 0;
    shares.forEach((share, i) => {
      const width = Math.max(0, Math.min(BAR - x, share * BAR));
      set(this.parts[i], { x: x.toFixed(2), width: width.toFixed(2) });
      x += width;
    });
    set(say(this.words, words), { title });
  }
}

/** Put a card where the plan has it. Set here, not in markup: the page allows no inline styles. */
function put(node, box) {
  const { x: left, y: top, width, height } = box;
  for (const [name, value] of Object.entries({ left, top, width, height })) {
    node.style[name] = `${value}px`;
  }
  return node;
}
