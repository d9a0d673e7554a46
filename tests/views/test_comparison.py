"""The table of a comparison: what says which row is the fastest."""

from __future__ import annotations

from helpers.compare_cells import cell

from memfit.compare import Comparison
from memfit.job import Subject
from memfit.views.words.comparison import make_sheet


def sheet_of(axis: str, values: tuple[int | str, ...]):
    speeds = {"step_seconds": 2.0, "tokens_per_second": 4096.0}
    cells = tuple(cell(50, speeds, **{axis: value}) for value in values)
    return make_sheet(Comparison(subjects=(Subject(model="llama3-8b"),), cells=cells, varying=(axis,), gpus=("H100-80GB",)))


def test_where_steps_do_different_work_tokens_are_compared_and_not_the_time_of_a_step():
    for axis, values in (("tp", (1, 2)), ("batch", (1, 4))):
        sheet = sheet_of(axis, values)
        assert (sheet.speed, {row.speed for row in sheet.rows}) == ("tokens/s/GPU", {"4,096"})
    sheet = sheet_of("checkpointing", ("none", "full"))
    assert (sheet.speed, {row.speed for row in sheet.rows}) == ("a step", {"2.00 s"})
