// Where everything of the picture goes: geometry alone, in CSS pixels, from a width and a number of
// stages. Wide windows get a ring with the coordinator in its middle, narrow ones (and rings of many
// stages) a column with the coordinator on top.

/** The coordinator's number in edges. */
export const COORDINATOR = -1;

const CARD = { width: 188, height: 128 };
const MIDDLE = { width: 180, height: 84 };
const ROOMY = 760; // wide enough for labels of both the arcs and the spokes
const BULGE = 14; // of an arc's line and mark beyond the ellipse
const WIDEST_RADIUS = 400;
// By number of stages: half the height of the ellipse, and how narrow it may be before cards touch.
const HALF_HEIGHT = [0, 0, 118, 150, 203, 195, 205, 220, 240];
const NARROWEST = [0, 420, 600, 600, 600, 760, 600, 700, 700];
const ONE_LINE = 240; // room that a label needs in one line
/** Height of a line of a label. */
export const LINE = 15;
const MARGIN = 8;
const RAIL = { x: 12, space: 32 };
const GAP = 46; // between the cards of a column: an edge and its label
const WIDEST_CARD = 520;

/**
 * A plan of the picture.
 *
 * kind: "ring" or "column"; width, height; middle, cards: boxes {x, y, width, height}, x and y of
 * the upper left corner; track: the closed line under a ring; path(source, target): how an edge runs,
 * as {d, label, head}, where label is {x, y, anchor, lines} and head {x, y, angle in degrees}, or null.
 * An end that is not among the cards is the coordinator.
 */
export function layout(width, count) {
  if (!(width >= NARROWEST[count])) return column(width, count);
  return count === 1 ? pair(width) : ring(width, count);
}

function ring(width, count) {
  const angles = Array.from({ length: count }, (_, i) => -90 - 180 / count + (360 / count) * i);
  const radians = (angle) => (angle * Math.PI) / 180;
  const across = angles.map((angle) => Math.cos(radians(angle)));
  const down = angles.map((angle) => Math.sin(radians(angle)));
  // As wide as cards and arcs have room: cards seldom lie at the far ends of the ellipse.
  const x = (width / 2 - CARD.width / 2 - MARGIN) / Math.max(...across);
  const radius = { x: Math.min(x, width / 2 - BULGE, WIDEST_RADIUS), y: HALF_HEIGHT[count] };
  const half = CARD.height / 2 + MARGIN;
  const top = Math.max(half - radius.y * Math.min(...down), BULGE + radius.y);
  const bottom = Math.max(radius.y * Math.max(...down) + half, radius.y + BULGE);
  const centre = { x: width / 2, y: top };
  const at = (angle) => ({
    x: centre.x + radius.x * Math.cos(radians(angle)),
    y: centre.y + radius.y * Math.sin(radians(angle)),
  });
  const middle = around(centre, MIDDLE);
  const cards = angles.map((angle) => around(at(angle), CARD));

  function path(source, target) {
    const [from, to] = [cards[source], cards[target]];
    if (!from || !to) return spoke(middle, from ?? to, width >= ROOMY || count < 3);
    if (target !== (source + 1) % count) return line(centreOf(from), centreOf(to));
    const place = at(angles[source] + 180 / count);
    const ahead = at(angles[source] + 180 / count + 1);
    return {
      d: `M${xy(at(angles[source]))} A${radius.x} ${radius.y} 0 0 1 ${xy(at(angles[target]))}`,
      head: { ...round(place), angle: degrees(place, ahead) },
      label: beside(place, centre, count, Math.abs(to.x - from.x) - CARD.width),
    };
  }
  const track = `M${centre.x - radius.x} ${centre.y} a${radius.x} ${radius.y} 0 1 1 0 0.01 Z`;
  return { kind: "ring", width, height: top + bottom, middle, cards, path, track };
}

/** One stage and the coordinator. */
function pair(width) {
  const card = around({ x: width / 2, y: CARD.height / 2 + MARGIN }, CARD);
  const middle = around({ x: width / 2, y: card.height + GAP + MARGIN + MIDDLE.height / 2 }, MIDDLE);
  const path = () => spoke(middle, card, true);
  const height = middle.y + middle.height + MARGIN;
  return { kind: "ring", width, height, middle, cards: [card], path, track: "" };
}

/** A label next to the edge, towards the middle: outside there may be no room. */
function beside(top, centre, count, gap) {
  if (count > 5) return null; // the cards leave no room: the tables have the numbers
  const flat = Math.abs(top.x - centre.x) < 60;
  if (flat) {
    // The arc of two stages runs above their cards, the others' between them.
    const lines = count > 2 && gap < ONE_LINE ? 2 : 1;
    const below = top.y < centre.y ? 27 : -17 - LINE * (lines - 1);
    return { x: top.x, y: top.y + below, anchor: "middle", lines };
  }
  const right = top.x > centre.x;
  // The lower arcs run towards the label from below.
  const y = top.y - (top.y > centre.y ? 17 : 3);
  return { x: top.x + (right ? -18 : 18), y, anchor: right ? "end" : "start", lines: 2 };
}

/** From the coordinator to a stage, with both directions' rates where there is room for them. */
function spoke(middle, card, roomy) {
  const [from, to] = [centreOf(middle), centreOf(card)];
  const [start, end] = [edgeOf(middle, to), edgeOf(card, from)];
  const aside = Math.abs(to.x - from.x);
  const steep = aside < middle.width / 2;
  const room = steep ? Math.abs(end.y - start.y) > 34 : aside - (middle.width + card.width) / 2 > 84;
  const y = (start.y + end.y) / 2 - 3;
  const label = steep
    ? { x: start.x + 12, y, anchor: "start", lines: 2 }
    : { x: (start.x + end.x) / 2, y, anchor: "middle", lines: 2 };
  return { d: `M${xy(start)} L${xy(end)}`, head: null, label: roomy && room ? label : null };
}

function column(width, count) {
  const left = MARGIN + RAIL.space;
  const card = { width: Math.min(width - left - MARGIN - 12, WIDEST_CARD), height: CARD.height };
  const middle = { x: MARGIN, y: MARGIN, width: left - MARGIN + card.width, height: MIDDLE.height };
  const bottom = middle.y + middle.height;
  const first = bottom + GAP / 2;
  const each = card.height + GAP;
  const cards = Array.from({ length: count }, (_, i) => ({ x: left, y: first + i * each, ...card }));
  const height = first + count * each - GAP + MARGIN;

  function path(source, target) {
    const [from, to] = [cards[source], cards[target]];
    if (!from || !to) {
      const box = from ?? to;
      return { d: `M${RAIL.x + MARGIN} ${bottom} V${box.y + 20} H${box.x}`, head: null, label: null };
    }
    if (target !== source + 1) return detour(from, to);
    const x = from.x + 36;
    const top = from.y + from.height;
    const place = { x, y: (top + to.y) / 2 };
    return {
      d: `M${x} ${top} V${to.y}`,
      head: { ...place, angle: 90 },
      label: { x: x + 18, y: place.y + 4, anchor: "start", lines: 1 },
    };
  }
  return { kind: "column", width, height, middle, cards, path, track: "" };
}

/** An edge that skips stages runs beside the column. */
function detour(from, to) {
  const x = from.x + from.width;
  const [start, end] = [from.y + from.height * 0.7, to.y + to.height * 0.3];
  const place = { x: x + 9, y: (start + end) / 2, angle: end > start ? 90 : -90 };
  const d = `M${x} ${start} C${x + 12} ${start} ${x + 12} ${end} ${x} ${end}`;
  return { d, head: place, label: null };
}

function line(from, to) {
  const place = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
  const head = { ...round(place), angle: degrees(from, to) };
  return { d: `M${xy(from)} L${xy(to)}`, head, label: null };
}

function around(point, size) {
  const [x, y] = [point.x - size.width / 2, point.y - size.height / 2].map(Math.round);
  return { x, y, ...size };
}

function centreOf(box) {
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
}

/** Where the way from a box's centre to a point leaves the box. */
function edgeOf(box, point) {
  const centre = centreOf(box);
  const [x, y] = [point.x - centre.x, point.y - centre.y];
  const [wide, high] = [box.width / 2 / Math.abs(x || 1e-9), box.height / 2 / Math.abs(y || 1e-9)];
  const share = Math.min(wide, high, 1);
  return { x: centre.x + x * share, y: centre.y + y * share };
}

function degrees(from, to) {
  return Math.round((Math.atan2(to.y - from.y, to.x - from.x) * 180) / Math.PI);
}

function round(point) {
  return { x: Math.round(point.x * 10) / 10, y: Math.round(point.y * 10) / 10 };
}

function xy(point) {
  return `${round(point).x} ${round(point).y}`;
}
