"""What a search says of what it found."""

from helpers.compare_cells import configuration, figures

from memfit.job import Cell, Subject
from memfit.plan.search.candidate import Candidate, Evaluated
from memfit.plan.search.result import PlanSearch
from memfit.units import GIB
from memfit.views.words.plan import closing, state_of


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


def test_the_headline_names_what_was_chosen_also_where_all_that_was_predicted_has_it():
    asked = configuration(model="gpt2", gpu="H200", world_size=8, strategy="no_shard", engine="ddp", compile="blocks", mesh=())
    candidate = Candidate(asked=asked, least_seconds=0.0, least_bytes=0, kind=(0,))
    only = Evaluated(candidate=candidate, cell=Cell(configuration=asked, figures=figures(10, step_seconds=1.0)), is_final=True)
    found = PlanSearch(
        subject=Subject(model="gpt2"),
        gpu="H200",
        world_size=8,
        room=40 * GIB,
        capacity=40 * GIB,
        open_axes=("strategy", "checkpointing"),
        tried=(only,),
        best_tried=only,
        num_candidates=2,
        num_too_large=0,
        num_too_slow=1,
    )
    assert found.varying == (), "one was predicted"
    headline = next(closing(found))
    assert headline.startswith("Run no_shard, no checkpointing, compile blocks: "), headline
