// The page: puts the stream's events into the panels.

import { byId, say, set } from "./dom.mjs";
import { age, count } from "./format.mjs";
import { Chat } from "./chat.mjs";
import { keep, key } from "./key.mjs";
import { Log, Slots, Tables } from "./panels.mjs";
import { Plots } from "./plots.mjs";
import { Ring } from "./ring.mjs";
import { RingStream } from "./stream.mjs";

const ring = new Ring(byId("picture"));
const plots = new Plots(byId("figures"));
const slots = new Slots(byId("slots"), byId("slots-summary"));
const log = new Log(byId("log"));
const tables = new Tables(byId("tables"), byId("as-table"));
const stream = new RingStream({ ring: show, log: (entry) => log.add(entry), connection: connected });

let connection = { state: "connecting", why: "" };
let last = null;

function show(view) {
  last = view;
  set(say(byId("model"), view.model || "no model yet"), { title: view.model || null });
  say(byId("uptime"), view.uptime ? `up ${age(view.uptime)}` : "");
  document.title = view.model ? `${view.model} – ringline` : "ringline";
  say(byId("ring-summary"), view.stages.length ? summary(view) : "");
  ring.draw(view);
  plots.show(view, performance.now() / 1000);
  slots.show(view);
  tables.show(view);
  head();
}

function connected(now) {
  const before = connection.state;
  connection = now;
  if (before === "live" && now.state !== "live") note("warning", `The connection to the server is lost: ${now.why}.`);
  if (before === "reconnecting" && now.state === "live") note("info", "The connection to the server is back.");
  if (now.state === "key") wantKey();
  set(document.body, { "data-connection": now.state });
  head();
}

/** The state at the top, and the sentence below it where something is wrong. */
function head() {
  const live = connection.state === "live";
  const state = live ? last.state : connection.state;
  const words = { key: "key needed", lost: "engine lost" }[state] ?? state;
  const loading = live && state === "starting" && last.loading !== null ? ` ${Math.round(last.loading * 100)} %` : "";
  set(byId("state"), { "data-state": state });
  say(byId("state-text"), words + loading);
  const sentence = live ? engineSentence() : serverSentence();
  set(byId("banner"), { hidden: !sentence });
  say(byId("banner"), sentence);
}

function engineSentence() {
  if (last.state === "ready" || !last.why) return "";
  return last.state === "lost" ? `Engine lost: ${last.why}` : last.why;
}

function serverSentence() {
  const { state, why } = connection;
  if (state === "reconnecting") return `Reconnecting: ${why}. What is shown is from before.`;
  if (state === "key") return `The server wants an API key: ${why}`;
  return state === "refused" ? `The server refuses: ${why}` : "";
}

function summary(view) {
  const nodes = new Set(view.stages.map((stage) => stage.node)).size;
  const held = view.stages.reduce((sum, stage) => sum + (stage.n_layers ?? 0), 0);
  return `${count(view.stages.length, "stage")} on ${count(nodes, "node")}${held ? `, ${count(held, "layer")}` : ""}`;
}

function note(level, text) {
  log.note({ time: Date.now() / 1000, level, text });
}

function wantKey() {
  byId("options").open = true;
  byId("api-key").focus();
}

byId("api-key").value = key();
byId("api-key").addEventListener("change", () => {
  keep(byId("api-key").value.trim());
  stream.retry();
});
new Chat(wantKey);
stream.run();
