"""The page in Chromium while things break: a node, the engine, the server, the key."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.api_server import api_server
from tests.browser import STORY, ask, chromium, opened, write_without_chance
from tests.peers.processes import Peer, patience, ringline_node

pytestmark = [pytest.mark.browser, pytest.mark.model]

#: an engine has to be loaded again, on a machine that may be busy.
AGAIN = 90_000


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    with chromium() as context:
        yield context


@pytest.fixture
def nodes() -> Iterator[list[Peer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ringline_node("--threads=1")) for _ in range(2)]


def ring_of(nodes: list[Peer]) -> tuple[str, str]:
    return "--rpc", ",".join(node.endpoint for node in nodes)


def is_ready(page: Page) -> None:
    expect(page.locator("#state-text")).to_have_text("ready", timeout=patience(AGAIN))
    expect(page.locator('.stage[data-state="ok"]')).to_have_count(2)
    expect(page.locator("#banner")).to_be_hidden()


def test_a_killed_node_turns_red_and_says_why_until_it_is_back(browser, nodes, model_path):
    with (
        api_server(model_path, *ring_of(nodes)) as server,
        opened(browser, server.url) as page,
    ):
        is_ready(page)
        whole = page.locator(".stage").first.evaluate("e => getComputedStyle(e).borderTopColor")
        write_without_chance(page)
        ask(page, STORY)
        expect(page.locator('.slot[data-state="decoding"]')).to_have_count(1)
        nodes[1].kill()
        card = page.locator(".stage").nth(1)
        expect(card).to_have_attribute("data-state", "lost")
        expect(card.locator(".state")).to_have_text("lost")
        expect(card.locator(".where")).to_contain_text(nodes[1].endpoint)
        expect(card.locator(".why")).to_contain_text("connect")
        expect(page.locator("#banner")).to_contain_text(f"node {nodes[1].endpoint}")
        expect(page.locator("#log")).to_contain_text(nodes[1].endpoint)
        red, green, blue = channels(card.evaluate("e => getComputedStyle(e).borderTopColor"))
        assert red > 2 * max(green, blue), (red, green, blue)
        assert channels(whole)[0] <= 1.2 * channels(whole)[1]
        expect(page.locator(".stage").first).not_to_have_attribute("data-state", "lost")
        expect(page.locator(".bubble[data-failed] .note")).to_contain_text(nodes[1].endpoint)
        with ringline_node("--threads=1", port=int(nodes[1].endpoint.rpartition(":")[2])):
            is_ready(page)
            write_without_chance(page, 3)
            ask(page, "Are you back?")
            expect(page.locator(".bubble .note").last).to_contain_text("first after")


def test_an_edge_that_fell_back_to_the_hub_is_marked_and_says_so(browser, nodes, model_path):
    """The first node may not dial the second."""
    with (
        ringline_node("--threads=1", "--allow-peer=192.0.2.0/24") as source,
        api_server(model_path, *ring_of([source, nodes[1]])) as server,
        opened(browser, server.url) as page,
    ):
        is_ready(page)
        write_without_chance(page, 60)
        ask(page, STORY)
        edge = page.locator('[data-edge="edge 0 1"]')
        expect(edge).to_have_class(re.compile("edge-hub"))
        expect(page.locator(".edge-label-hub")).to_contain_text("fell back to the hub")
        dashes = "e => getComputedStyle(e).strokeDasharray"
        assert edge.locator(".base").evaluate(dashes) != "none"
        page.get_by_text("The ring as tables").click()
        expect(page.locator("#tables")).to_contain_text("hub (fell back)")


def test_the_page_survives_the_death_of_the_engine(browser, nodes, model_path):
    with (
        api_server(model_path, *ring_of(nodes)) as server,
        opened(browser, server.url) as page,
    ):
        is_ready(page)
        page.evaluate("window.same = true")
        os.kill(server.engine_pid(), signal.SIGKILL)
        expect(page.locator("#log")).to_contain_text("SIGKILL")
        expect(page.locator("#log")).to_contain_text(
            re.compile("ready.*lost.*ready", re.DOTALL), timeout=patience(AGAIN)
        )
        is_ready(page)
        assert page.evaluate("window.same"), "the page was loaded again"


def test_the_page_survives_the_death_of_the_server(browser, nodes, model_path):
    with api_server(model_path, *ring_of(nodes)) as first, opened(browser, first.url) as page:
        is_ready(page)
        page.evaluate("window.same = true")
        first.process.kill()
        first.process.wait()
        expect(page.locator("#state-text")).to_have_text("reconnecting")
        expect(page.locator("#banner")).to_contain_text("does not answer")
        port = first.url.rpartition(":")[2].strip("/")
        with api_server(model_path, *ring_of(nodes), f"--port={port}"):
            is_ready(page)
            expect(page.locator("#log")).to_contain_text("The connection to the server is back.")
            expect(page.locator("#log li")).to_have_count(6)  # two of each server, two of the page
            assert page.evaluate("window.same"), "the page was loaded again"


def test_a_server_that_is_asked_to_end_does_not_wait_for_those_who_look(browser, nodes, model_path):
    with (
        api_server(model_path, *ring_of(nodes)) as server,
        opened(browser, server.url) as page,
    ):
        is_ready(page)
        assert server.stop() == 0
        expect(page.locator("#state-text")).to_have_text("reconnecting")
        assert "Cancel" not in server.log()


def test_a_server_with_a_key_shows_nothing_until_the_key_is_typed(browser, nodes, model_path):
    with (
        api_server(model_path, *ring_of(nodes), "--api-key=secret-key") as server,
        opened(browser, server.url) as page,
    ):
        expect(page.locator("#state-text")).to_have_text("key needed")
        expect(page.get_by_label("API key")).to_be_focused()
        assert page.locator(".stage").count() == 0
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#banner")).to_contain_text("API key")
        page.get_by_label("API key").fill("secret-key")
        page.keyboard.press("Enter")
        is_ready(page)
        write_without_chance(page, 3)
        ask(page, "Hello.")
        expect(page.locator(".bubble .note").last).to_contain_text("first after")
        page.reload()
        is_ready(page)
        assert "secret" not in page.url


def channels(colour: str) -> list[float]:
    """Red, green and blue of what CSS calls a colour."""
    return [float(number) for number in re.findall(r"[\d.]+", colour)[:3]]
