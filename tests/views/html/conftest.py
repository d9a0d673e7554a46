"""Debian's Chromium, driven by Playwright, and pages opened in it as users open them: from disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.hanging import HANGS_AFTER

from memfit.ledger import Ledger
from memfit.views.html import render_page, study

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


Open = Callable[..., Visit]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("the report page is tested in Chromium, which is not here: run `make chromium`")
    from playwright.sync_api import sync_playwright  # here: it takes more than a second, and only one worker of pytest needs it

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=1000 * HANGS_AFTER)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a page of ledgers, by their labels. A visit that went as it should leaves no complaints and no requests."""
    visits: list[Visit] = []
    contexts = []

    def open_page(ledgers: dict[str, Ledger], *, title: str = "run.memfit", forgive: bool = False, **context: Any) -> Visit:
        path = tmp_path / "report.html"
        path.write_text(render_page([study(label, ledger) for label, ledger in ledgers.items()], title), encoding="utf-8")
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | context))
        contexts[-1].set_default_timeout(1000 * HANGS_AFTER)
        visit = Visit(contexts[-1].new_page())
        visit.watch()
        visit.page.goto(path.as_uri())
        visit.page.wait_for_selector("html[data-ready]")
        if not forgive:
            visits.append(visit)
        return visit

    yield open_page
    for context in contexts:
        context.close()
    for visit in visits:
        assert visit.complaints == []
        assert [url for url in visit.requests if not url.startswith("file://")] == []
        assert len(visit.requests) == 1
