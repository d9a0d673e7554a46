"""How long a report of 200,000 events takes: to write, to open in Chromium, and to move about in.

    python benchmarks/speed/report_speed.py            # a made-up run, as in analysis_speed.py
    python benchmarks/speed/report_speed.py *.memfit   # ledgers of yours, on one page

Opening ends when everything is drawn; moving is the time from a command until the browser has shown its effect. Writes
``results/report_speed.md``.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

from playwright.sync_api import Browser, Page, sync_playwright

import memfit
from memfit.cli import main as main_of_memfit

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.speed import analysis_speed

BENCHMARKS = pathlib.Path(__file__).parents[1]

NUM_EVENTS, NUM_TIMES = 200_000, 7
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
SHOWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def write(ledgers: list[pathlib.Path], page: pathlib.Path) -> float:
    start = time.perf_counter()
    assert main_of_memfit(["report", *map(str, ledgers), "-o", str(page)]) == 0
    return time.perf_counter() - start


def open_page(browser: Browser, path: pathlib.Path) -> tuple[Page, float]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    start = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    page.evaluate(SHOWN)
    return page, time.perf_counter() - start


def moving(page: Page, act: str) -> float:
    """Milliseconds from a command until the browser has shown its effect: two frames, or 33 ms, at best."""
    return page.evaluate(
        f"async () => {{ const start = performance.now(); {act}; await {SHOWN}; return performance.now() - start; }}"
    )


def press(label: str) -> str:
    return f"[...document.querySelectorAll('.timeline button')].find(b => b.innerText === '{label}').click()"


def point(number: int) -> str:
    where = f"clientX: box.x + box.width * {(number % 50) / 50}, clientY: box.y + 50, bubbles: true"
    return (
        "const over = document.querySelector('.u-over'), box = over.getBoundingClientRect();"
        f"over.dispatchEvent(new MouseEvent('mousemove', {{ {where} }}))"
    )


def measure(ledgers: list[pathlib.Path], folder: pathlib.Path) -> dict[str, str]:
    path = folder / "report.html"
    seconds = write(ledgers, path)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        pages, opened = zip(*(open_page(browser, path) for _ in range(NUM_TIMES)), strict=True)
        zoomed = [moving(pages[-1], press(label)) for label in ("Zoom in", "Zoom in", "Zoom out", "Whole run") * NUM_TIMES]
        pointed = [moving(pages[-1], point(number)) for number in range(10 * NUM_TIMES)]
        browser.close()
    return {
        "writing it": f"{seconds:.1f} s",
        "its size": memfit.format_bytes(path.stat().st_size),
        "opening it": f"{statistics.median(opened):.2f} s, {max(opened):.2f} s at worst",
        "a zoom": f"{statistics.median(zoomed):.0f} ms, {max(zoomed):.0f} ms at worst",
        "pointing at a moment": f"{statistics.median(pointed):.0f} ms, {max(pointed):.0f} ms at worst",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledgers", nargs="*", type=pathlib.Path)
    ledgers = parser.parse_args().ledgers
    with tempfile.TemporaryDirectory() as folder:
        if not ledgers:
            ledgers = [pathlib.Path(folder) / "run.memfit"]
            analysis_speed.Run(NUM_EVENTS).record().save(ledgers[0])
        num_events = sum(len(memfit.Ledger.load(path).events) for path in ledgers)
        figures = measure(ledgers, pathlib.Path(folder))
    lines = [f"A report of {num_events:,} events; `python benchmarks/speed/report_speed.py`.", "", "| | median |", "|---|---|"]
    lines += [f"| {what} | {figure} |" for what, figure in figures.items()]
    (BENCHMARKS / "results" / "report_speed.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
