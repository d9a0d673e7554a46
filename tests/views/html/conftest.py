"""Pages opened in Chromium as users open them: from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.browsing import Visit
from helpers.hanging import HANGS_AFTER

from memfit.ledger import Ledger
from memfit.views.html import render_page, study

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Open = Callable[..., Visit]


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a page of ledgers, by their labels, or one that is given. A visit that went as it should leaves no complaints and no
    requests."""
    visits: list[Visit] = []
    contexts = []

    def open_page(ledgers: dict[str, Ledger] | str, *, title: str = "run.memfit", forgive: bool = False, **context: Any) -> Visit:
        path = tmp_path / "report.html"
        page = ledgers if isinstance(ledgers, str) else render_page([study(label, run) for label, run in ledgers.items()], title)
        path.write_text(page, encoding="utf-8")
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
