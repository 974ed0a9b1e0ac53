"""The page's modules by themselves, imported in Chromium from the files that the wheel ships."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ringline.api.page.assets import load_assets
from tests.browser import chromium, opened

pytestmark = pytest.mark.browser

ASSETS = load_assets()


class Files(BaseHTTPRequestHandler):
    """The page's files, and an empty page at any other path."""

    def do_GET(self) -> None:
        asset = ASSETS.get(self.path.removeprefix("/static/"))
        body = asset.body if asset else b"<!doctype html><link rel=icon href=/static/icon.svg>"
        self.send_response(200)
        self.send_header("Content-Type", asset.media_type if asset else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[str, str], Any]]:
    """`run(module, body)`: what the body returns, which knows the module as `m`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with (
                chromium() as context,
                opened(context, f"http://127.0.0.1:{server.server_port}/") as page,
            ):

                def evaluate(module: str, body: str) -> Any:
                    script = f"const m = await import('/static/{module}'); {body}"
                    return page.evaluate(f"async () => {{ {script} }}")

                yield evaluate
        finally:
            server.shutdown()


def test_numbers_are_written_for_people(run):
    words = run(
        "format.mjs",
        "return [m.bytes(0), m.bytes(1536), m.bytes(8 * 2 ** 30), m.rate(2048), m.duration(0.0341),"
        "m.duration(2.5), m.age(59), m.age(3700), m.age(200000), m.percent(0.434), m.figure(123.4),"
        "m.count(1, 'slot'), m.layers(8, 4), m.layers(8, 1)]",
    )
    assert words == [
        *("0 B", "1.5 KiB", "8.0 GiB", "2.0 KiB/s", "34.1 ms", "2.5 s", "59 s", "1 h 1 min"),
        *("2 d 7 h", "43 %", "123", "1 slot", "layers 8\u201311", "layer 8"),
    ]


def test_what_is_not_known_is_a_dash_and_not_zero(run):
    assert (
        run(
            "format.mjs",
            "return [null, undefined, NaN].flatMap((x) => [m.bytes(x), m.rate(x), m.percent(x)])",
        )
        == ["\u2013"] * 9
    )


STREAM = "event: ring\r\ndata: {}\r\n\r\n: ping\n\ndata: one\ndata: two\n\ndata:é\r\r"


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_events_are_the_same_in_pieces_of_any_size(run, size):
    found = run(
        "sse.mjs",
        f"const text = {STREAM!r}, parser = new m.Parser(), found = [];"
        f"for (let i = 0; i < text.length; i += {size})"
        f"  found.push(...parser.take(text.slice(i, i + {size})));"
        "return [...found, ...parser.take('\\n')].map((event) => [event.type, event.data])",
    )
    assert found == [["ring", "{}"], ["message", "one\ntwo"], ["message", "é"]]


@pytest.mark.parametrize("count", range(1, 13))
def test_cards_never_touch_each_other_and_stay_in_the_picture(run, count):
    faults = run(
        "layout.mjs",
        f"""
        const faults = [];
        for (let width = 300; width <= 1100; width += 25) {{
          const plan = m.layout(width, {count}), boxes = [plan.middle, ...plan.cards];
          boxes.forEach((a, i) => {{
            if (a.x < 0 || a.y < 0 || a.x + a.width > width || a.y + a.height > plan.height)
              faults.push(`${{width}}: box ${{i}} is outside`);
            boxes.slice(0, i).forEach((b, j) => {{
              const beside = a.x >= b.x + b.width || b.x >= a.x + a.width;
              if (!beside && a.y < b.y + b.height && b.y < a.y + a.height)
                faults.push(`${{width}}: boxes ${{j}} and ${{i}} touch`);
            }});
          }});
          for (let i = 0; i < {count}; i++)
            for (let j = -1; j < {count}; j++)
              if (i !== j && /NaN|undefined/.test(plan.path(j, i).d))
                faults.push(`edge ${{j}} ${{i}}`);
        }}
        return faults""",
    )
    assert faults == []


@pytest.mark.parametrize("count", range(1, 13))
def test_labels_lie_on_no_card_and_on_no_other_label(run, count):
    faults = run(
        "ring.mjs",
        f"""
        for (const file of ["base.css", "ring.css"]) {{
          const sheet = document.createElement("link");
          Object.assign(sheet, {{ rel: "stylesheet", href: "/static/" + file }});
          await new Promise((done) => {{ sheet.onload = done; document.head.append(sheet); }});
        }}
        const stages = Array.from({{ length: {count} }}, (_, index) => ({{ index, node: "n" }}));
        const edge = (source, target) =>
          ({{ source, target, path: "hub", fell_back: source >= 0 && target >= 0,
            bytes_per_second: 987654321 }});
        const edges = stages.flatMap((_, i) => [edge(-1, i), edge(i, -1), edge(i, i + 1)]);
        const view = {{ stages, edges, slots: [], queued: 0, state: "ready" }}, faults = [];
        const place = document.createElement("div");
        document.body.replaceChildren(place);
        const apart = (a, b) =>
          a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
        for (let width = 300; width <= 1100; width += 50) {{
          place.style.width = `${{width}}px`;
          new m.Ring(place).draw(view);
          const boxes = (kind) => [...place.querySelectorAll(kind)]
            .filter((node) => node.textContent)
            .map((node) => [node.textContent, node.getBoundingClientRect()]);
          const labels = boxes(".edge-label"), all = [...labels, ...boxes(".card")];
          labels.forEach(([words, box], i) => {{
            for (const [other, there] of all.slice(i + 1))
              if (!apart(box, there)) faults.push(`${{width}}: ${{words}} on ${{other}}`);
          }});
        }}
        document.head.querySelectorAll("link[rel=stylesheet]").forEach((sheet) => sheet.remove());
        return faults""",
    )
    assert faults == []


def test_more_bytes_make_a_thicker_line_up_to_a_limit(run):
    widths = run("ring.mjs", "return [0, 1e3, 1e5, 1e7, 1e9, 1e12].map(m.thickness)")
    assert widths == sorted(widths)
    assert (widths[0], widths[-2:]) == (1.5, [11, 11])
    assert len(set(widths)) == 5


def test_both_ways_to_a_stage_are_one_line_and_edges_to_nowhere_are_none(run):
    edges = run(
        "ring.mjs",
        """
        const edge = (source, target, bytes_per_second) => ({ source, target, bytes_per_second });
        const real = [edge(-1, 0, 5), edge(0, -1, 7), edge(0, 1, 9)];
        return m.merged([...real, edge(1, 4, 1), edge(1, 1, 1)], 2)
          .map((e) => [e.name, e.down ?? null, e.up ?? null])""",
    )
    assert edges == [["spoke 0", 5, 7], ["spoke 1", 0, 0], ["edge 0 1", None, None]]


def test_the_reason_of_a_loss_does_not_name_the_cards_node_again(run):
    reasons = "[m.reason({node: 'a:1', why: 'node a:1: it died'}), "
    reasons += "m.reason({node: 'a:1', why: 'node b:2: it died'}), m.reason({node: '', why: ''})]"
    assert run("cards.mjs", f"return {reasons}") == ["it died", "node b:2: it died", ""]


def test_a_fallback_is_said_in_words(run):
    edge = "{ path: 'hub', fell_back: true, bytes_per_second: 2048 }"
    assert run("ring.mjs", f"return m.edgeLabel({edge})") == ["fell back to the hub · 2.0 KiB/s"]


def test_an_entry_that_comes_again_is_shown_once_and_a_new_server_counts_anew(run):
    texts = run(
        "panels.mjs",
        """
        const list = document.createElement("ol"), log = new m.Log(list);
        const add = (server, number, text) =>
          log.add({ server, number, text, time: 1, level: "info" });
        add("a", 1, "first"); add("a", 2, "second"); add("a", 1, "first"); add("a", 2, "second");
        add("b", 1, "restarted"); add("b", 1, "restarted");
        return [...list.children].map((item) => item.lastChild.textContent)""",
    )
    assert texts == ["restarted", "second", "first"]


def test_the_log_is_bounded(run):
    assert (
        run(
            "panels.mjs",
            """
            const list = document.createElement("ol"), log = new m.Log(list);
            for (let number = 1; number < 1000; number++)
              log.add({ server: "a", number, text: "x", time: 1, level: "info" });
            return list.children.length""",
        )
        == 200
    )


def test_what_a_node_says_never_becomes_markup(run):
    found = run(
        "cards.mjs",
        """
        const card = new m.StageCard({ x: 0, y: 0, width: 1, height: 1 });
        const why = "<img src=x onerror=alert(1)>";
        const sizes = { weight_bytes: 0, kv_bytes: 0, memory_free: 0, memory_total: 0 };
        const layers = { n_layers: 1, first_layer: 0, busy_share: null };
        card.show({ index: 0, node: why, device: why, state: "lost", why, ...layers, ...sizes });
        const found = (selector) => [...card.node.querySelectorAll(selector)];
        return [found("img").length, found(".why")[0].textContent]""",
    )
    assert found == [0, "<img src=x onerror=alert(1)>"]


def test_memory_is_told_apart_into_weights_cache_and_others(run):
    stage = "{ weight_bytes: 200, kv_bytes: 100, memory_total: 1000, memory_free: 600 }"
    shares, words = run("cards.mjs", f"return m.memory({stage}).slice(0, 2)")
    assert shares == [0.2, 0.1, 0.1]
    assert words == "400 B / 1000 B"


def test_a_plot_has_a_gap_where_nothing_is_known_and_forgets_what_is_old(run):
    path, low, high = run(
        "plots.mjs",
        """
        const history = new m.History();
        history.add(0, 99); history.add(200, 1); history.add(201, null); history.add(202, 3);
        return [history.path(202), history.range.low, history.range.high]""",
    )
    assert path.count("M") == 2
    assert (low, high) == (1, 3)
