"""What a search says of what it found."""

from dataclasses import replace
from typing import Any

import pytest
from helpers.compare_cells import configuration, figures

from memfit.job import Cell, Subject
from memfit.plan.search.candidate import Candidate, Evaluated
from memfit.plan.search.result import Infeasible, PlanSearch
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


def of_gpt2(size: float, **more: Any) -> PlanSearch:
    asked = configuration(model="gpt2", gpu="T4", world_size=1, strategy="", engine="", compile="none", mesh=())
    candidate = Candidate(asked=asked, least_seconds=0.0, least_bytes=0, kind=(0,))
    only = Evaluated(candidate=candidate, cell=Cell(configuration=asked, figures=figures(size, step_seconds=1.0)), is_final=True)
    counts = {"num_candidates": 1, "num_too_large": 0, "num_too_slow": 0}
    found = PlanSearch(
        subject=Subject(model="gpt2"), gpu="T4", world_size=1, room=GIB, capacity=GIB, tried=(only,), best_tried=only, **counts
    )
    return replace(found, **more)


def test_what_is_said_to_be_the_fastest_is_said_of_the_batches_that_were_looked_at():
    said = [*closing(of_gpt2(0.5, batches=(4, 8, 12)))]
    assert "Nothing else, of the batches below, can be faster by more than 3%." in said
    assert "Batches that were looked at: 4, 8, 12 sequences in a step of all GPUs." in said
    assert "Nothing else can be faster by more than 3%." in [*closing(of_gpt2(0.5))]


@pytest.mark.parametrize(("least", "said"), [("T4", "on a T4 with all of its memory: with a larger --budget"), ("L4", "on L4.")])
def test_a_gpu_on_which_nothing_fits_is_not_said_to_be_one_on_which_it_fits(least: str, said: str):
    cell = of_gpt2(2).tried[0].cell
    closest = replace(cell, figures=replace(cell.figures, least_gpu=least))
    found = of_gpt2(2, best_tried=None, infeasible=Infeasible(closest=closest, least_state_bytes=0))
    assert [*closing(found)][-1].startswith(f"It would fit {said}")
