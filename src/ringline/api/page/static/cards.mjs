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
    this.where = html("p", { class: "where" });
    this.layers = html("p", { class: "layers" });
    this.busy = new Bar("busy", ["busy"]);
    this.memory = new Bar("memory", ["weights", "kv", "other"]);
    this.why = html("p", { class: "why", hidden: true });
    const head = html("p", { class: "card-head" }, this.title, html("span", { class: "state" }, html("span", { class: "mark", "aria-hidden": "true" }), this.state));
    this.node = put(html("li", { class: "card stage" }, head, this.where, this.layers, this.busy.node, this.memory.node, this.why), box);
  }

  /** Show the stage as it is now. */
  show(stage) {
    const lost = stage.state === "lost";
    set(this.node, { "data-state": stage.state, "data-stage": stage.index });
    say(this.title, `Stage ${stage.index}`);
    say(this.state, STATES[stage.state] ?? stage.state);
    const place = [stage.node || "this machine", stage.device].filter(Boolean).join(" · ");
    set(say(this.where, place), { title: place });
    const parts = [stage.n_layers === null ? "" : layers(stage.first_layer, stage.n_layers), stage.has_output ? "output" : ""];
    say(this.layers, parts.filter(Boolean).join(" + "));
    set(this.why, { hidden: !lost, title: stage.why || null });
    say(this.why, lost ? stage.why : "");
    set(this.busy.node, { hidden: lost });
    set(this.memory.node, { hidden: lost });
    this.busy.show([stage.busy_share ?? 0], percent(stage.busy_share));
    this.memory.show(...memory(stage));
  }
}

/** The coordinator: what the whole ring does. */
export class Coordinator {
  constructor(box) {
    this.big = html("strong", { class: "big" });
    this.small = html("p", { class: "muted" });
    const head = html("p", { class: "card-head" }, "Coordinator");
    this.node = put(html("li", { class: "card coordinator" }, head, html("p", { class: "speed" }, this.big, " tokens/s"), this.small), box);
  }

  /** Show the whole ring's figures. */
  show(view) {
    say(this.big, figure(view.tokens_per_second));
    const busy = view.slots.filter((slot) => slot.state !== "idle").length;
    const waiting = view.queued ? `, ${view.queued} waiting` : " busy";
    say(this.small, view.state === "ready" ? `${busy} of ${count(view.slots.length, "slot")}${waiting}` : `engine ${view.state}`);
  }
}

/** Shares of memory and their words: the stage's weights and KV cache, and what others use. */
export function memory(stage) {
  const { weight_bytes: weights, kv_bytes: kv, memory_total: total, memory_free: free } = stage;
  if (!total) return [[0, 0, 0], weights ? bytes(weights + kv) : "–"];
  const used = Math.max(total - free, weights + kv);
  const shares = [weights, kv, used - weights - kv].map((size) => size / total);
  return [shares, `${bytes(used)} / ${bytes(total)}`, `weights ${bytes(weights)}, KV cache ${bytes(kv)}, in use ${bytes(used)} of ${bytes(total)}`];
}

/** A name, a thin bar of one or more parts, and words. */
class Bar {
  constructor(name, parts) {
    this.words = html("span", { class: "bar-words" });
    this.parts = parts.map((part) => svg("rect", { class: `part part-${part}`, y: 0, height: 4 }));
    const picture = svg("svg", { class: "bar", viewBox: `0 0 ${BAR} 4`, preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: "track", width: BAR, height: 4 }), ...this.parts);
    this.node = html("div", { class: "measure" }, html("span", { class: "bar-name" }, name), this.words, picture);
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
  for (const [name, value] of Object.entries({ left: box.x, top: box.y, width: box.width, height: box.height })) {
    node.style[name] = `${value}px`;
  }
  return node;
}
