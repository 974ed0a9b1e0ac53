// The ring as a picture: edges in SVG, and over them the stages as a list of cards, so that their
// words can be read, selected and searched like any text.
//
// The picture is built when its shape changes (stages, edges, width) and otherwise only updated: an
// animation goes on, a selection stays.

import { html, say, set, svg } from "./dom.mjs";
import { count, rate } from "./format.mjs";
import { COORDINATOR, LINE, layout } from "./layout.mjs";
import { Coordinator, StageCard } from "./cards.mjs";

const THINNEST = 1.5;
const THICKEST = 11;

const EMPTY = {
  starting: "The engine is starting.",
  lost: "The engine is lost.",
  stopping: "The server is stopping.",
};

/** A line's width for so many bytes a second: 1 KiB/s is thin, 100 MiB/s thick. */
export function thickness(bytesPerSecond) {
  const width = THINNEST + 1.8 * Math.log10(1 + Math.max(0, bytesPerSecond) / 512);
  return Math.round(Math.min(THICKEST, width) * 10) / 10;
}

/** What is written at an edge between stages, in one line or two. */
export function edgeLabel(edge, lines = 1) {
  const speed = rate(edge.bytes_per_second);
  if (lines > 1) return [edge.fell_back ? "fell back" : edge.path, speed]; // the legend has the rest
  return [`${edge.fell_back ? "fell back to the hub" : edge.path} · ${speed}`];
}

/** Draws into a container, as wide as that is. */
export class Ring {
  #place;
  #view = null;
  #shape = "";
  #cards = [];
  #coordinator = null;
  #lines = new Map();

  constructor(place) {
    this.#place = place;
    new ResizeObserver(() => this.#view && this.draw(this.#view)).observe(place);
  }

  /** Show a view of the ring. */
  draw(view) {
    this.#view = view;
    const width = Math.floor(this.#place.clientWidth);
    if (!view.stages.length || !width) return this.#empty(view);
    const edges = merged(view.edges, view.stages.length);
    const shape = JSON.stringify([width, view.stages.length, edges.map((edge) => edge.name)]);
    if (shape !== this.#shape) this.#build(layout(width, view.stages.length), edges, view.stages);
    this.#shape = shape;
    this.#coordinator.show(view);
    view.stages.forEach((stage, i) => this.#cards[i].show(stage));
    for (const edge of edges) update(this.#lines.get(edge.name), edge);
  }

  #empty(view) {
    this.#shape = "";
    const text = EMPTY[view.state] ?? "Nothing is known of the ring yet.";
    this.#place.replaceChildren(html("p", { class: "empty" }, text));
  }

  #build(plan, edges, stages) {
    const picture = svg("svg", { width: plan.width, height: plan.height, "aria-hidden": "true" });
    this.#lines = new Map(edges.map((edge) => [edge.name, line(plan, edge)]));
    // Spokes first: what flows from stage to stage lies over them.
    const ordered = [...edges].sort((a, b) => Number(b.spoke) - Number(a.spoke));
    const lines = ordered.map((edge) => this.#lines.get(edge.name));
    const track = svg("path", { class: "track-line", d: plan.track || null });
    picture.append(track, ...lines.map((parts) => parts.group), ...lines.map((parts) => parts.label));
    this.#coordinator = new Coordinator(plan.middle);
    this.#cards = stages.map((stage, i) => new StageCard(plan.cards[i]));
    const name = `The ring: ${count(stages.length, "stage")}`;
    const list = html("ul", { class: "cards", "aria-label": name });
    list.append(this.#coordinator.node, ...this.#cards.map((card) => card.node));
    const frame = html("div", { class: `ring ring-${plan.kind}` }, picture, list);
    frame.style.height = `${plan.height}px`;
    this.#place.replaceChildren(frame);
  }
}

/** The edges to draw: both ways between the coordinator and a stage are one line. */
export function merged(edges, n) {
  const drawn = new Map();
  for (let stage = 0; stage < n; stage++) {
    const ends = { source: COORDINATOR, target: stage };
    drawn.set(`spoke ${stage}`, { name: `spoke ${stage}`, spoke: true, ...ends, down: 0, up: 0 });
  }
  for (const edge of edges) {
    if (edge.source >= n || edge.target >= n || edge.source === edge.target) continue;
    if (edge.source === COORDINATOR) drawn.get(`spoke ${edge.target}`).down += edge.bytes_per_second;
    else if (edge.target === COORDINATOR) drawn.get(`spoke ${edge.source}`).up += edge.bytes_per_second;
    else {
      const name = `edge ${edge.source} ${edge.target}`;
      drawn.set(name, { ...edge, name, spoke: false });
    }
  }
  return [...drawn.values()];
}

function line(plan, edge) {
  const { d, head, label } = plan.path(edge.source, edge.target);
  const base = svg("path", { class: "base", d });
  const flow = svg("path", { class: "flow", d });
  const mark = svg("path", { class: "head" });
  const hint = svg("title", {});
  if (head) set(mark, { transform: `translate(${head.x} ${head.y}) rotate(${head.angle})` });
  const text = svg("text", { "text-anchor": label?.anchor });
  const lineAt = (_, i) => svg("tspan", { x: label.x, y: label.y + i * LINE });
  const parts = Array.from({ length: label?.lines ?? 0 }, lineAt);
  text.append(...parts);
  const group = svg("g", { "data-edge": edge.name }, hint, base, flow, head ? mark : null);
  return { group, hint, base, flow, mark, label: text, words: parts };
}

function update(parts, edge) {
  const bytesPerSecond = edge.spoke ? edge.down + edge.up : edge.bytes_per_second;
  const width = thickness(bytesPerSecond);
  const kind = kindOf(edge);
  const state = `edge edge-${kind}${bytesPerSecond > 0 ? " flowing" : ""}`;
  set(parts.group, { class: state, "data-bytes": Math.round(bytesPerSecond) });
  set(parts.base, { "stroke-width": width });
  set(parts.flow, { "stroke-width": Math.max(1.5, width * 0.4) });
  set(parts.mark, { d: headShape(kind, width) });
  set(parts.label, { class: `edge-label edge-label-${kind}` });
  const words = edge.spoke ? spokeLabel(edge) : edgeLabel(edge, parts.words.length);
  parts.words.forEach((part, i) => say(part, words[i]));
  // In a ring of many stages there is no room for labels.
  say(parts.hint, edge.spoke ? words.join(", ") : edgeLabel(edge)[0]);
}

function kindOf(edge) {
  if (edge.spoke) return "spoke";
  if (edge.fell_back) return "hub";
  return edge.path === "hub" ? "plain-hub" : "direct";
}

/** The shape says it too, not the colour alone: an arrow goes direct, a diamond stops at the hub. */
function headShape(kind, width) {
  const size = 6 + width / 2;
  const hub = kind === "hub" || kind === "plain-hub";
  if (hub) return `M0 ${-size} L${size} 0 L0 ${size} L${-size} 0 Z`;
  return `M${-size * 0.7} ${-size} L${size} 0 L${-size * 0.7} ${size} Z`;
}

function spokeLabel(edge) {
  return edge.down + edge.up > 0 ? [`to it ${rate(edge.down)}`, `back ${rate(edge.up)}`] : ["", ""];
}
