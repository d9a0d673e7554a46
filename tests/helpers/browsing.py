"""Debian's Chromium, driven by Playwright, and what a page did in it that a page should not do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from helpers.hanging import HANGS_AFTER

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Visit:
    """A page in the browser, and everything it did that a page should not do."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """What stood on the console, what was thrown, what asked for attention."""
    requests: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _hear(self, message: ConsoleMessage) -> None:
        self.complaints.append(f"{message.type}: {message.text}")

    def text(self, selector: str) -> str:
        """What is to be read there, with single spaces."""
        return " ".join(self.page.inner_text(selector).split())

    def rows(self, selector: str) -> list[list[str]]:
        """The cells of a table's body."""
        cells = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
        found: list[list[str]] = self.page.eval_on_selector_all(f"{selector} tbody tr", cells)
        return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api")  # here: it takes more than a second, and only one worker of pytest needs it
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("the report page is tested in Chromium, which is not here: run `make chromium`")

    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=1000 * HANGS_AFTER)
        yield browser
        browser.close()
