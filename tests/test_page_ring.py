"""The page in Chromium over a real ring: what is seen while all is well."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.api_server import ApiServer, api_server
from tests.browser import STORY, ask, chromium, opened, write_without_chance
from tests.peers.processes import Peer, patience, ringline_node

pytestmark = [pytest.mark.browser, pytest.mark.model]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Peer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ringline_node("--threads=1")) for _ in range(2)]


@pytest.fixture(scope="module")
def server(model_path: Path, nodes: list[Peer]) -> Iterator[ApiServer]:
    endpoints = ",".join(node.endpoint for node in nodes)
    with api_server(model_path, "--rpc", endpoints) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    with chromium() as context:
        yield context


@pytest.fixture
def page(browser: BrowserContext, server: ApiServer) -> Iterator[Page]:
    with opened(browser, server.url) as page:
        expect(page.locator("#state-text")).to_have_text("ready")
        write_without_chance(page)
        yield page
    server.wait_idle()


def test_the_ring_appears_with_its_stages_and_all_layers(page: Page, nodes: list[Peer]):
    cards = page.locator(".stage")
    expect(cards).to_have_count(2)
    for index, node in enumerate(nodes):
        expect(cards.nth(index)).to_have_attribute("data-state", "ok")
        expect(cards.nth(index).locator(".where")).to_contain_text(node.endpoint)
        expect(cards.nth(index).locator(".bar-words").last).to_contain_text("GiB")
    first, last = (cards.nth(i).locator(".layers").inner_text() for i in range(2))
    assert first.startswith("layers 0\u2013")
    assert last.endswith("\u201329 + output")
    assert int(re.findall(r"\d+", last)[0]) == int(re.findall(r"\d+", first)[1]) + 1
    expect(page.locator("#ring-summary")).to_have_text("2 stages on 2 nodes, 30 layers")
    expect(page.locator("#model")).to_contain_text("SmolLM2")


def test_numbers_move_while_a_request_runs(page: Page):
    ask(page, STORY)
    expect(page.locator(".coordinator .big")).not_to_have_text(re.compile("^(0|\u2013)$"))
    edge = page.locator('[data-edge="edge 0 1"]')
    expect(edge).to_have_attribute("data-bytes", re.compile("[1-9]"))
    expect(edge).to_have_class(re.compile("edge-direct flowing"))
    expect(page.locator(".edge-label-direct")).to_contain_text("rendezvous · ")
    expect(page.locator('.slot[data-state="decoding"]')).to_have_count(1)
    for index in range(2):
        busy = page.locator(".stage").nth(index).locator(".bar-words").first
        expect(busy).to_have_text(re.compile(r"^[1-9]\d* %$"))
    # A line goes through points that differ: at least one piece of it is drawn.
    expect(page.locator(".plot-line").first).to_have_attribute("d", re.compile("L"))
    page.get_by_role("button", name="Stop").click()
    expect(page.locator('.slot[data-state="idle"]')).to_have_count(4)
    expect(page.locator(".coordinator .big")).to_have_text("0")


def test_the_chat_streams_and_stops(page: Page):
    ask(page, STORY)
    answer = page.locator('.bubble[data-role="assistant"] .text')
    expect(answer).to_have_text(re.compile(".{5}"))
    early = answer.inner_text()
    page.wait_for_function(
        "text => document.querySelector('.bubble[data-role=assistant] .text')"
        ".textContent.length > text.length + 10",
        arg=early,
    )
    assert page.locator(".bubble[aria-busy]").count() == 1
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".bubble .note").last).to_have_text(re.compile("tokens.*stopped"))
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    stopped = answer.inner_text()
    assert stopped.startswith(early)
    expect(page.locator('.slot[data-state="idle"]')).to_have_count(4)
    assert answer.inner_text() == stopped


def test_the_chat_remembers_and_a_new_one_forgets(page: Page):
    page.get_by_text("Options").click()
    page.get_by_label("At most, in tokens").fill("4")
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    for text in ("One.", "Two."):
        ask(page, text)
        expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".bubble")).to_have_count(0)
    ask(page, "Three.")
    expect(page.locator(".bubble .note").last).to_contain_text("first after")
    assert [body["max_tokens"] for body in bodies] == [4, 4, 4]
    roles = [[message["role"] for message in body["messages"]] for body in bodies]
    assert roles == [["user"], ["user", "assistant", "user"], ["user"]]


def test_an_answer_that_cannot_be_is_explained(page: Page):
    page.get_by_text("Options").click()
    page.get_by_label("Temperature").fill("-0")
    ask(page, "word " * 6000)
    note = page.locator(".bubble[data-failed] .note")
    expect(note).to_have_text(re.compile("token", re.IGNORECASE))
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_the_chat_is_usable_with_the_keyboard_alone(page: Page):
    page.locator("body").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the chat")).to_be_focused()
    page.keyboard.press("Enter")
    message = page.get_by_label("Message", exact=True)
    expect(message).to_be_focused()
    assert message.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    page.keyboard.type(STORY)
    page.keyboard.press("Enter")
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_visible()
    expect(page.locator('.bubble[data-role="assistant"] .text')).to_have_text(re.compile(".{5}"))
    page.keyboard.press("Tab")
    expect(stop).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".bubble .note").last).to_contain_text("stopped")
    expect(message).to_be_focused()


def test_everything_that_can_be_focused_has_a_name_and_the_log_is_live(page: Page):
    page.get_by_text("Options").click()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea, a, [tabindex]")]
          .filter((e) => !e.textContent.trim() && !e.ariaLabel && !e.labels?.length)
          .filter((e) => !e.getAttribute("aria-labelledby"))
          .map((e) => e.outerHTML)"""
    )
    assert nameless == []
    assert page.locator("#log").get_attribute("aria-live") == "polite"
    expect(page.locator("#log")).to_contain_text("the engine is ready")


def test_the_picture_can_be_read_as_tables(page: Page, nodes: list[Peer]):
    page.get_by_text("The ring as tables").click()
    tables = page.locator("#tables table")
    expect(tables.first.locator("tbody tr")).to_have_count(2)
    expect(tables.first).to_contain_text(nodes[1].endpoint)
    expect(tables.last).to_contain_text("rendezvous")


def test_a_phone_need_not_scroll_sideways(page: Page):
    page.set_viewport_size({"width": 360, "height": 740})
    ask(page, "averyveryveryverylongwordthatdoesnotfitintoanylineofaphone" * 4)
    page.get_by_text("The ring as tables").click()
    page.get_by_text("Options").click()
    expect(page.locator(".ring-column")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    outside = page.evaluate(
        """() => [...document.querySelectorAll(".panel, .card, button, textarea, .figure, .pill")]
          .map((e) => [e.className || e.id, e.getBoundingClientRect()])
          .filter(([name, box]) => box.right > 360 || box.left < 0)
          .map(([name, box]) => name)"""
    )
    assert outside == []
    page.get_by_role("button", name="Stop").or_(page.get_by_role("button", name="Send")).click()


CONTRAST = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = (text) => {
    const [r, g, b] = channels(text).slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((channels(colour)[3] ?? 1) === 1) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const low = [];
  const words = "h1, h2, h3, p, span, button, li, summary, label, time";
  for (const e of document.querySelectorAll(words)) {
    if (!e.textContent.trim() || !e.checkVisibility()) continue;
    const both = [getComputedStyle(e).color, ground(e)].map(luminance).sort((x, y) => y - x);
    const ratio = (both[0] + 0.05) / (both[1] + 0.05);
    if (ratio < 4.5) low.push([e.className || e.tagName, ratio]);
  }
  return { low, ground: luminance(ground(document.body)) };
}"""


def test_words_stand_out_in_the_light_and_in_the_dark(page: Page):
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(CONTRAST)
        assert found["low"] == [], scheme
        grounds.append(found["ground"])
    assert grounds[0] > 0.8
    assert grounds[1] < 0.05


def test_nothing_moves_for_those_who_want_it_still(page: Page):
    ask(page, STORY)
    expect(page.locator('[data-edge="edge 0 1"]')).to_have_class(re.compile("flowing"))
    moving = "document.getAnimations().length"
    page.wait_for_function(f"{moving} > 0")
    page.emulate_media(reduced_motion="reduce")
    page.wait_for_function(f"{moving} === 0")
    page.get_by_role("button", name="Stop").click()


def test_the_files_have_types_tags_and_a_strict_policy(server: ApiServer):
    page = server.ask("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'self'; ")
    module = server.ask("/static/main.mjs")
    assert module.headers["content-type"] == "text/javascript; charset=utf-8"
    assert module.headers["x-content-type-options"] == "nosniff"
    known = {"If-None-Match": f'W/{module.headers["etag"]}, "other"'}
    again = server.ask("/static/main.mjs", headers=known)
    assert (again.status, again.body) == (304, b"")
    head = server.ask("/static/main.mjs", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(module.body))


@pytest.mark.parametrize(
    "name", ["", "router.py", "../router.py", "..%2frouter.py", "%2e%2e/feed.py"]
)
def test_only_the_pages_own_files_are_served(server: ApiServer, name: str):
    answer = server.ask(f"/static/{name}")
    assert answer.status == 404
    assert "there is nothing at" in answer.error["message"]


def look(server: ApiServer) -> HTTPResponse:
    """Become a viewer; whoever has just left may still have to make room."""
    deadline = time.monotonic() + patience(30)
    while True:
        try:
            stream = urllib.request.urlopen(f"{server.url}/ring/events", timeout=patience(30))
        except urllib.error.HTTPError as error:
            error.close()
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.05)
        else:
            assert stream.readline() == b"event: ring\n"
            return stream


def test_viewers_are_bounded_and_who_leaves_makes_room(server: ApiServer):
    with ExitStack() as stack:
        for _ in range(32):
            stack.enter_context(look(server))
        answer = server.ask("/ring/events")
        assert answer.status == 503
        assert "32 viewers look at the ring already" in answer.error["message"]
    look(server).close()
