// Small plots of the last two minutes: a number, its line, and in words what the line shows.

import { html, say, set, svg } from "./dom.mjs";
import { duration, figure, percent } from "./format.mjs";

const SPAN = 120; // seconds shown
const HEIGHT = 36;
const MOST_POINTS = 400;

/**
 * What is plotted: of a view, the value of the line, and words that stand below it. Where the line has
 * a gap the number is that of still, if there is one.
 */
const FIGURES = [
  {
    name: "Tokens per second",
    value: (view) => view.tokens_per_second,
    words: figure,
    note: (view) => `prompts: ${figure(view.prompt_tokens_per_second)}`,
  },
  {
    name: "TTFT",
    title: "Time to first token",
    value: (view) => view.ttft_lately,
    still: (view) => median(view.ttft),
    words: duration,
    note: (view) => summary(view.ttft),
  },
  {
    name: "TPOT",
    title: "Time per token after the first",
    value: (view) => view.tpot_lately,
    still: (view) => median(view.tpot),
    words: duration,
    note: (view) => summary(view.tpot),
  },
  {
    name: "KV cache",
    title: "Tokens that the slots' caches hold",
    value: (view) => view.kv_share,
    words: percent,
    note: (view) => (view.kv_total ? `${view.kv_used} of ${view.kv_total} tokens` : ""),
    top: 1,
  },
];

/** Values of the last SPAN seconds; null where there is none. */
export class History {
  #points = [];

  /** Add a value at a time in seconds, forget what is too old. */
  add(time, value) {
    this.#points.push({ time, value });
    const oldest = time - SPAN;
    while (this.#points.length > MOST_POINTS || this.#points[0].time < oldest) this.#points.shift();
  }

  /** Lowest and highest known value, or null. */
  get range() {
    const values = this.#points.map((point) => point.value).filter((value) => value !== null);
    return values.length ? { low: Math.min(...values), high: Math.max(...values) } : null;
  }

  /** The line as an SVG path, SPAN by HEIGHT; gaps where nothing is known. */
  path(now, top = null) {
    const high = top ?? (this.range?.high || 1);
    let pen = "M";
    const steps = this.#points.map(({ time, value }) => {
      if (value === null) {
        pen = "M";
        return "";
      }
      const x = SPAN - (now - time);
      const y = HEIGHT - 2 - (Math.min(value, high) / high) * (HEIGHT - 4);
      const step = `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
      return step;
    });
    return steps.join("");
  }
}

/** The tiles of figures. */
export class Plots {
  #tiles;

  constructor(place) {
    this.#tiles = FIGURES.map((what) => new Tile(what));
    place.replaceChildren(...this.#tiles.map((tile) => tile.node));
  }

  /** Add a view's values. */
  show(view, now) {
    for (const tile of this.#tiles) tile.show(view, now);
  }
}

class Tile {
  #history = new History();

  constructor(what) {
    this.what = what;
    this.value = html("p", { class: "value" });
    this.note = html("p", { class: "muted note" });
    this.line = svg("path", { class: "plot-line" });
    const shape = { viewBox: `0 0 ${SPAN} ${HEIGHT}`, preserveAspectRatio: "none" };
    const base = svg("path", { class: "plot-base", d: `M0 ${HEIGHT - 1}H${SPAN}` });
    this.picture = svg("svg", { class: "plot", role: "img", ...shape }, base, this.line);
    const name = what.title ? html("abbr", { title: what.title }, what.name) : what.name;
    this.node = html("div", { class: "figure" }, html("h3", {}, name), this.value, this.picture, this.note);
  }

  show(view, now) {
    const value = this.what.value(view);
    this.#history.add(now, value);
    say(this.value, this.what.words(value ?? this.what.still?.(view)));
    say(this.note, this.what.note(view));
    set(this.line, { d: this.#history.path(now, this.what.top) || null });
    set(this.picture, { "aria-label": this.#words() });
  }

  #words() {
    const range = this.#history.range;
    const name = this.what.title ?? this.what.name;
    if (!range) return `${name}: nothing yet`;
    const [low, high] = [range.low, range.high].map(this.what.words);
    return `${name}: ${low} to ${high} in the last two minutes`;
  }
}

/** A summary's median, or null where nothing has been measured. */
function median(summary) {
  return summary.count ? summary.median : null;
}

function summary(value) {
  return value.count ? `median ${duration(value.median)}, 95 % within ${duration(value.p95)}` : "no request has ended yet";
}
