"""Comparisons, searches and plans in a notebook: every row with a bar, and names that can only be read."""

from __future__ import annotations

import re

from helpers.report_runs import HOSTILE

from memfit.compare import Comparison
from memfit.job import Cell, CellResult, Configuration, PredictOptions, Subject
from memfit.plan import Plan
from memfit.plan.plan_file import PlanCost

FIGURES = CellResult(
    peak_allocated=10,
    peak_reserved=12,
    smallest_fit=2**30,
    fits=True,
    margin=5,
    capacity=2**31,
    num_alloc_retries=0,
    least_gpu="T4",
    peak_phase="backward",
    breakdown={"activation": 10},
    assumptions=(),
    seconds=1.0,
    step_seconds=0.25,
)


def cell(batch: int, figures: CellResult | None, error: str = "") -> Cell:
    asked = Configuration.of(Subject(model="gpt2"), {"batch": batch}, PredictOptions(gpu="T4"))
    return Cell(configuration=asked, figures=figures, error=error)


def test_a_comparison_has_a_bar_for_every_row_and_says_what_failed():
    cells = (cell(1, FIGURES), cell(2, FIGURES), cell(4, None, HOSTILE))
    comparison = Comparison(subjects=(Subject(model="gpt2"),), cells=cells, varying=("batch",), gpus=("T4",))
    html = comparison._repr_html_()
    assert html.count("border-radius:2px") == 2
    assert "1.00 GiB" in html
    assert "250 ms" in html
    assert not re.search(r"<(?!/?(div|table|thead|tbody|tr|th|td|b|span)\b)", html)
    assert repr(comparison) == "Comparison(gpt2: 3 configurations, 2 fit)"


def test_a_plan_shows_the_code_that_does_the_same():
    cost = PlanCost(peak_allocated_bytes=1, peak_reserved_bytes=2, smallest_fit_bytes=2**30, step_seconds=0.5)
    plan = Plan(gpu="T4", budget_bytes=2**31, recipe={"model": "gpt2", "checkpointing": "full"}, figures=cost)
    assert "1.00 GiB of 2.00 GiB on T4" in plan._repr_html_()
    assert "<pre" in plan._repr_html_()
    assert plan.code().splitlines()[0] in str(plan)
