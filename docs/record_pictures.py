"""Pictures of the pages, for README and docs: docs/serve.png, docs/tour-*.png and docs/report*.png.

memfit serve --no-open FOLDER              # a folder with two ledgers, before.memfit and after.memfit
python docs/record_pictures.py ADDRESS     # what it has printed

The report is that of docs/llama3-8b.memfit.gz, the ledger of the command that README begins with.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

DOCS = Path(__file__).parent
SECONDS = 1000


def record_tour(page: Page, address: str) -> None:
    """Asks, sees that it does not fit, looks for what would make it fit, and at two ledgers."""
    page.goto(address)
    page.locator('.now[data-kind="exact"]').wait_for(timeout=300 * SECONDS)
    page.set_viewport_size({"width": 1280, "height": 1040})
    page.screenshot(path=DOCS / "serve.png")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.locator("#gpu").select_option("RTX-4090")
    page.locator("#c-checkpointing").select_option("")
    page.locator('.now[data-kind="bound"]').get_by_text("no checkpointing").first.wait_for(timeout=60 * SECONDS)
    page.screenshot(path=DOCS / "tour-1.png")
    page.locator('.now[data-kind="exact"]').wait_for(timeout=300 * SECONDS)
    page.get_by_text("What makes it fit").first.scroll_into_view_if_needed()
    page.screenshot(path=DOCS / "tour-2.png")
    page.get_by_role("button", name=re.compile("Ledgers")).first.click()
    for name in ("before.memfit", "after.memfit"):
        page.get_by_label(f"choose {name}").check()
    page.get_by_role("button", name="Compare two").click()
    page.frame_locator("iframe.report").locator(".line").first.wait_for(timeout=60 * SECONDS)
    page.wait_for_timeout(1 * SECONDS)
    page.screenshot(path=DOCS / "tour-3.png")


def record_report(browser: Browser) -> None:
    """Over events, over milliseconds, and the peak explained in dark."""
    with tempfile.TemporaryDirectory() as folder:
        ledger, report = Path(folder, "run.memfit"), Path(folder, "report.html")
        ledger.write_bytes(gzip.decompress((DOCS / "llama3-8b.memfit.gz").read_bytes()))
        subprocess.run([sys.executable, "-m", "memfit", "report", ledger, "-o", report], check=True)
        page = browser.new_page(viewport={"width": 1280, "height": 1300})
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-ready]")
        lane = page.locator(".streams-frame canvas")
        lane.scroll_into_view_if_needed()
        lane.hover(position={"x": 500, "y": 30})
        page.locator(".over-time").screenshot(path=DOCS / "report-milliseconds.png")
        page.evaluate("scrollTo(0, 0)")
        page.get_by_role("button", name="events", exact=True).click()
        page.get_by_role("button", name="Whole run").click()
        page.screenshot(path=DOCS / "report.png")
        dark = browser.new_page(viewport={"width": 1280, "height": 1340}, color_scheme="dark")
        dark.goto(report.as_uri())
        dark.wait_for_selector("html[data-ready]")
        dark.evaluate("document.querySelector('section.peak').scrollIntoView()")
        dark.screenshot(path=DOCS / "report-dark.png")


if __name__ == "__main__":
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        record_tour(browser.new_page(viewport={"width": 1280, "height": 900}), sys.argv[1])
        record_report(browser)
        browser.close()
