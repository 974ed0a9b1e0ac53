// The panels that are lists: slots, the event log, and the ring as tables.

import { html, say, set } from "./dom.mjs";
import { STATES } from "./cards.mjs";
import { bytes, clock, count, layers, percent, rate } from "./format.mjs";

const MOST_ENTRIES = 200;
const STAGE_HEADINGS = [
  "Stage", "Node", "Device", "Layers", "Busy", "Data wait", "Device wait",
  "Weights", "KV cache", "Memory free", "State",
];
const EDGE_HEADINGS = ["From", "To", "Path", "Bytes/s", "In all"];
const SLOT_STATES = { idle: "idle", prompt: "reading", decoding: "writing" };

/** The slots, one item each. */
export class Slots {
  #list;
  #summary;

  constructor(list, summary) {
    this.#list = list;
    this.#summary = summary;
  }

  show(view) {
    const busy = view.slots.filter((slot) => slot.state !== "idle").length;
    const words = `${busy} of ${view.slots.length} busy, ${view.queued} waiting`;
    say(this.#summary, view.slots.length ? words : "no engine");
    while (this.#list.children.length > view.slots.length) this.#list.lastChild.remove();
    view.slots.forEach((slot, i) => {
      const item = this.#list.children[i] ?? this.#list.appendChild(slotItem());
      set(item, { "data-state": slot.state });
      say(item.children[1], `${slot.group}.${slot.index}`);
      say(item.children[2], slotWords(slot));
    });
  }
}

/** What a slot does, in words. */
export function slotWords(slot) {
  const state = SLOT_STATES[slot.state] ?? slot.state;
  if (slot.state === "idle") return slot.n_cached ? `${state}, ${slot.n_cached} cached` : state;
  if (slot.state !== "prompt") return `${state}, ${count(slot.n_done, "token")}`;
  return `${state} ${Math.min(slot.n_cached, slot.n_prompt)} of ${slot.n_prompt}`;
}

/** The event log, the newest on top; entries that came already are left out. */
export class Log {
  #list;
  #server = "";
  #newest = -1;

  constructor(list) {
    this.#list = list;
    list.append(html("li", { class: "muted" }, "Nothing has happened yet."));
  }

  /** Add an entry of the server: {server, number, time, level, text}. */
  add(entry) {
    if (entry.server !== this.#server) {
      this.#server = entry.server;
      this.#newest = -1;
    }
    if (entry.number <= this.#newest) return;
    this.#newest = entry.number;
    this.note(entry);
  }

  /** Add an entry of the page itself. */
  note({ time, level, text }) {
    if (!this.#list.querySelector("time")) this.#list.replaceChildren();
    const when = html("time", { datetime: new Date(time * 1000).toISOString() }, clock(time));
    const mark = html("span", { class: "level" }, level === "info" ? "" : `${level}: `);
    this.#list.prepend(html("li", { "data-level": level }, when, html("span", {}, mark, text)));
    while (this.#list.children.length > MOST_ENTRIES) this.#list.lastChild.remove();
  }
}

/** The picture's content as tables, for those who would rather read it. Drawn only while open. */
export class Tables {
  #place;
  #details;
  #view = null;

  constructor(place, details) {
    this.#place = place;
    this.#details = details;
    details.addEventListener("toggle", () => this.#view && this.show(this.#view));
  }

  show(view) {
    this.#view = view;
    if (!this.#details.open) return;
    const stages = table("Stages", STAGE_HEADINGS, view.stages.map(stageRow));
    const edges = table("Edges", EDGE_HEADINGS, view.edges.map(edgeRow));
    const scrolled = this.#place.scrollLeft;
    this.#place.replaceChildren(stages, edges);
    this.#place.scrollLeft = scrolled;
  }
}

function slotItem() {
  const mark = html("span", { class: "mark", "aria-hidden": "true" });
  return html("li", { class: "slot" }, mark, html("b", {}), html("span", {}));
}

function stageRow(stage) {
  const held = stage.n_layers === null ? "–" : layers(stage.first_layer, stage.n_layers);
  const state = STATES[stage.state] ?? stage.state;
  const free = `${bytes(stage.memory_free)} of ${bytes(stage.memory_total)}`;
  return [
    stage.index,
    stage.node || "this machine",
    stage.device,
    held + (stage.has_output ? " + output" : ""),
    ...[stage.busy_share, stage.wait_share, stage.lock_share].map(percent),
    bytes(stage.weight_bytes),
    bytes(stage.kv_bytes),
    stage.memory_total ? free : "–",
    stage.why ? `${state}: ${stage.why}` : state,
  ];
}

function edgeRow(edge) {
  const end = (stage) => (stage < 0 ? "coordinator" : `stage ${stage}`);
  const path = edge.fell_back ? `${edge.path} (fell back)` : edge.path;
  return [end(edge.source), end(edge.target), path, rate(edge.bytes_per_second), bytes(edge.bytes)];
}

function table(caption, headings, rows) {
  const head = html("tr", {}, ...headings.map((heading) => html("th", { scope: "col" }, heading)));
  const body = rows.map((row) => html("tr", {}, ...row.map((cell) => html("td", {}, String(cell)))));
  return html("table", {}, html("caption", {}, caption), html("thead", {}, head), html("tbody", {}, ...body));
}
