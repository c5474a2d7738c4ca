"""A tab of a headless Chromium without a network, which shows one page after another."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
PHONE = {"width": 390, "height": 800}
DESK = {"width": 1280, "height": 900}


class Tab:
    """The tab, and what its pages have ``said``: on the console, as errors, and what they have requested.

    A tab for each page would be a window for each, which takes the browser three times as long as the page.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self._requested(request.url))

    def _requested(self, url: str) -> None:
        if not url.startswith(("file:", "about:blank")):
            self.said.append(url)

    def show(self, url: str, size: dict[str, int], dark: bool, wait: str) -> Any:
        """Load a page from the start, without the pointer, and wait for what it draws."""
        self.page.goto("about:blank")  # another fragment alone would load nothing
        self.page.mouse.move(-1, -1)
        self.page.emulate_media(media="screen", color_scheme="dark" if dark else "light")
        self.page.set_viewport_size(size)
        self.page.goto(url)
        self.page.wait_for_selector(wait)
        self.page.wait_for_timeout(60)  # charts are drawn once their width is known
        return self.page


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    """The tab of a browser that runs for one module."""
    # Not at the top: its 40,000 objects would slow down each search of the other suites.
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright (extra browser)")
    with playwright.sync_playwright() as made:
        browser = made.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, "--disable-component-update"])
        yield Tab(browser.new_context(offline=True).new_page())
        browser.close()
