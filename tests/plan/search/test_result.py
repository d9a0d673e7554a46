"""What a search says of what it found."""

from helpers.compare_cells import configuration, figures

from memfit.job import Cell, Subject
from memfit.plan.search.candidate import Candidate, Evaluated
from memfit.plan.search.result import PlanSearch
from memfit.units import GIB
from memfit.views.words.plan import state_of


def tried(number: int, seconds: float, size: float) -> Evaluated:
    asked = configuration(function="train.py:build", number=number, gpu="H200", world_size=1)
    candidate = Candidate(asked=asked, least_seconds=0.0, least_bytes=0, kind=(number,))
    return Evaluated(
        candidate=candidate, cell=Cell(configuration=asked, figures=figures(size, step_seconds=seconds)), is_final=True
    )


def test_the_answer_is_shown_also_where_another_is_as_fast_and_smaller():
    smaller, answer = tried(0, 1.00, 10), tried(1, 1.02, 12)
    found = PlanSearch(
        subject=Subject(function="train.py:build"),
        gpu="H200",
        world_size=1,
        room=40 * GIB,
        capacity=40 * GIB,
        tried=(smaller, answer),
        best_tried=answer,
        num_candidates=2,
        num_too_large=0,
        num_too_slow=0,
    )
    assert [point.cell for point in found.frontier] == [smaller.cell]
    assert [point.cell for point in found.outline] == [smaller.cell, answer.cell]
    assert [state_of(point, found) for point in found.outline] == ["fits", "as fast, and simpler to run"]
