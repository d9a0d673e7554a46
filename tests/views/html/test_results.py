"""Pages of comparisons, differences and explanations: what is read on them, and what a hand does to them."""

from __future__ import annotations

from dataclasses import replace

from helpers.compare_cells import cell
from helpers.report_runs import HOSTILE, hostile, training

from memfit.analysis.diff.runs import diff_ledgers
from memfit.compare import Comparison
from memfit.explain import explain
from memfit.job import Subject
from memfit.testing import ledger
from memfit.views.html.results.comparison import comparison_page
from memfit.views.html.results.difference import diff_page
from memfit.views.html.results.explanation import explanation_page
from memfit.views.html.results.pictures import Line, overlay


def compared() -> Comparison:
    cells = (
        cell(40, {"step_seconds": 0.5, "tokens_per_second": 2000.0}, batch=1),
        cell(60, {"step_seconds": 0.75, "tokens_per_second": 4000.0}, batch=2),
        cell(900, {"step_seconds": 1.5, "tokens_per_second": 4100.0}, batch=4),
        replace(cell(None, batch=8), error=HOSTILE),
    )
    return Comparison(subjects=(Subject(model="llama3-8b"),), cells=cells, varying=("batch",), gpus=("H100-80GB",))


def test_a_comparison_is_drawn_by_the_work_that_is_done(open_page):
    visit = open_page(comparison_page(compared()), viewport={"width": 390, "height": 844})
    assert visit.text(".answer").startswith("Run it with batch 2 on H100-80GB")
    dots = visit.page.locator("circle.at")
    heights = [float(dots.nth(number).get_attribute("cy") or 0) for number in range(dots.count())]
    assert len(heights) == 3
    assert heights[1] > heights[0], "half the time of a token is lower, although a step takes longer"
    dots.nth(1).hover()
    assert visit.text(".said") == "batch 2: 60.00 GiB, 750 ms a step, fits, 20.00 GiB left, 4,000 tokens a second"
    assert "1 of them, at the right edge, up to 900.00 GiB" in visit.text("figcaption")
    visit.page.click("summary >> nth=0")
    assert HOSTILE in visit.text("main")
    assert visit.page.locator("img").count() == 0
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.page.click("text=Copy")
    assert visit.page.evaluate("navigator.clipboard.readText()").startswith("memfit predict --model llama3-8b")


def test_two_runs_over_one_another(open_page):
    runs = training(), training(scale=2)
    visit = open_page(diff_page(diff_ledgers(*runs), runs, ("before.memfit", HOSTILE)))
    assert visit.text(".answer").startswith("The peak grew by")
    lines = visit.page.locator(".line")
    assert lines.count() == 2
    visit.page.click(".legend button >> nth=1")
    assert [lines.nth(number).is_visible() for number in range(2)] == [True, False]


def test_steps_of_runs_of_different_length_stand_over_one_another():
    short = ledger("alloc 4MiB parameter w; step; alloc 8MiB x; free x")
    long = ledger("step; alloc 8MiB x; free x; step; alloc 8MiB y; free y; alloc 1MiB z; free z")
    drawn = overlay([Line(label="short", ledger=short), Line(label="long", ledger=long)])
    points = [part.partition('"')[0].split() for part in drawn.split('points="')[1:]]
    ends = [float(line[-1].partition(",")[0]) for line in points]
    starts = [float(line[0].partition(",")[0]) for line in points]
    assert starts == [0.0, 333.3], "what precedes the first step is before it"
    assert ends[0] < 667 < ends[1]


def test_an_explanation_says_what_would_help(open_page):
    visit = open_page(explanation_page(explain(hostile(), "T4"), HOSTILE))
    assert visit.page.title() == f"{HOSTILE} – memfit"
    assert visit.text(".answer")


def test_the_slider_moves_through_the_segments(open_page):
    visit = open_page({"run": training(layers=6, scale=4)})
    before = visit.text(".segments .when")
    visit.page.locator(".segments input").focus()
    visit.page.keyboard.press("Home")
    assert visit.text(".segments .when") != before
    visit.page.locator(".segments rect.c-parameter >> nth=0").hover()
    assert visit.text(".segments .said").startswith("20.00 MiB, parameter, head.w")
