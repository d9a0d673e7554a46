"""Levels of all steps on the page: drawn, and in a table."""

from dataclasses import replace

import numpy as np

from memfit.ledger.schema import Levels
from memfit.testing import ledger as made
from memfit.units import GIB
from memfit.views.html.over_time.levels import MOST_POINTS, levels_section
from memfit.views.html.runs import study


def run_with(num_steps):
    run = made("alloc 4MiB parameter w on cuda:0; step; alloc 8MiB a on cuda:0; free a")
    run = replace(run, info=replace(run.info, versions={"torch": "2.11.0"}))
    rows = [
        [step, step, 0, step, 0, 9 * GIB, 5 * GIB, (10 + (step == 70) * 4) * GIB, 6 * GIB, GIB, -1] for step in range(num_steps)
    ]
    return study("run", replace(run, levels=Levels.from_rows(np.array(rows, dtype=np.int64).ravel().tolist())))


def test_the_worst_step_is_named_and_in_the_table():
    section = levels_section(run_with(2000))
    assert "step 70: 8.00 GiB of 14.00 GiB" in section
    assert ">70<" in section
    assert section.count("<polygon") == 2


def test_many_steps_are_drawn_with_few_points():
    outline = levels_section(run_with(2000)).partition('points="')[2].partition('"')[0]
    assert len(outline.split()) == MOST_POINTS + 2
    assert outline.split()[0] == "0,160"


def test_a_run_without_levels_has_no_such_section():
    assert levels_section(run_with(0)) == ""
