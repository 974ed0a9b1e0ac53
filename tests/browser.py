"""Chromium for the tests of the page: Debian's program, driven by playwright, a new profile each.

playwright runs an event loop on the thread that uses it, so a module of such tests must not call
asyncio.run while its browser is open.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from browser import PROGRAM, missing
from tests.peers.processes import patience

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECONDS = 30.0
#: what the demo model writes about this without chance has more than 400 tokens.
STORY = "Tell me a very long story about a ring of machines."


@contextmanager
def chromium(**options: Any) -> Iterator[BrowserContext]:
    """A browser with an empty profile; options are those of playwright's contexts."""
    program = shutil.which(PROGRAM)
    if program is None:
        pytest.fail(missing("it is not installed"))
    expect.set_options(timeout=1000 * patience(SECONDS))
    with sync_playwright() as driver, tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        context = driver.chromium.launch_persistent_context(
            profile, executable_path=program, headless=True, args=ARGUMENTS, **options
        )
        context.set_default_timeout(1000 * patience(SECONDS))
        try:
            yield context
        finally:
            context.close()


class Watch:
    """Notes what a page must never do: print errors, ask another host, break a promise silently.

    Attributes:
        faults: what it did. A server that is gone is no fault of the page: see `gone`.
    """

    def __init__(self, page: Page) -> None:
        self.faults: list[str] = []
        self._page = page
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("request", self._request)

    def _console(self, message: Any) -> None:
        # Chromium itself prints a line for each answer that is no success, and each refused
        # connection; the tests that bring a server down or lock it expect them.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.faults.append(f"{message.type}: {message.text}")

    def _request(self, request: Any) -> None:
        if self._page.url.startswith("http"):
            here, there = urlsplit(self._page.url).netloc, urlsplit(request.url).netloc
            if here != there:
                self.faults.append(f"asked {request.url}")


@contextmanager
def opened(context: BrowserContext, url: str, **emulated: Any) -> Iterator[Page]:
    """A new tab at an address; fails in the end if the page did what it must not.

    `emulated` is playwright's: color_scheme, reduced_motion.
    """
    page = context.new_page()
    watch = Watch(page)
    page.emulate_media(**emulated)
    page.goto(url)
    try:
        yield page
        assert watch.faults == []
    finally:
        page.close()


def ask(page: Page, text: str) -> None:
    """Send a message with the mouse."""
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()


def write_without_chance(page: Page, n_predict: int = 400) -> None:
    """Have the chat ask without chance, and for long answers: a test can stop them, not wait."""
    page.locator("#temperature").evaluate("field => { field.value = 0 }")
    page.locator("#max-tokens").evaluate(f"field => {{ field.value = {n_predict} }}")
