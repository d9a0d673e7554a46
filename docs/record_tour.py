"""Pictures of the served page, as somebody uses it: docs/tour-*.png, for docs/serve.md.

memfit serve --no-open FOLDER            # a folder with two ledgers, before.memfit and after.memfit
python docs/record_tour.py ADDRESS       # what it has printed
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).parent
SECONDS = 1000


def record(page: Page, address: str) -> None:
    """Asks, sees that it does not fit, makes it fit, and looks at two ledgers."""
    page.goto(address)
    page.get_by_label("What is trained").fill("llama3-8b")
    page.locator("#gpu").select_option("RTX-4090")
    page.locator("#c-world_size").fill("8")
    page.locator("#c-checkpointing").select_option("")
    page.get_by_text(re.compile("cannot fit|may fit|at least")).first.wait_for(timeout=60 * SECONDS)
    page.screenshot(path=DOCS / "tour-1.png")
    page.get_by_text(re.compile("exact prediction")).first.wait_for(timeout=300 * SECONDS)
    page.get_by_text("What makes it fit").first.scroll_into_view_if_needed()
    page.screenshot(path=DOCS / "tour-2.png")
    page.get_by_role("button", name=re.compile("Ledgers")).first.click()
    for name in ("before.memfit", "after.memfit"):
        page.get_by_label(f"choose {name}").check()
    page.get_by_role("button", name="Compare two").click()
    page.frame_locator("iframe.report").locator(".line").first.wait_for(timeout=60 * SECONDS)
    page.wait_for_timeout(1 * SECONDS)
    page.screenshot(path=DOCS / "tour-3.png")


if __name__ == "__main__":
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        record(browser.new_page(viewport={"width": 1280, "height": 900}), sys.argv[1])
        browser.close()
