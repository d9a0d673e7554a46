"""What one configuration says of others that do more: an order of work that never sets bounds where nothing is known."""

from dataclasses import replace
from typing import Any

import pytest
from helpers.compare_cells import figures
from helpers.planned_models import asked_of

from memfit.job import Cell
from memfit.job.cell import CellResult
from memfit.plan.search.candidate import Candidate, Evaluated
from memfit.plan.search.siblings import AT_LEAST


def predicted(seconds: float, **words: Any) -> Evaluated:
    candidate = Candidate.of(asked_of("llama3-8b", **words))
    found: CellResult = figures(1.0, step_seconds=seconds * 8)
    return Evaluated(candidate=candidate, cell=Cell(configuration=candidate.asked, figures=found))


def bound(known: Evaluated, **words: Any) -> float:
    return known.bounds(Candidate.of(asked_of("llama3-8b", **words)))


LESS = {"strategy": "shard_grad_op", "batch": 1}


@pytest.mark.parametrize(
    "more",
    [
        LESS | {"strategy": "full_shard"},
        LESS | {"checkpointing": "full"},
        LESS | {"checkpointing": "selective"},
        LESS | {"cp": 2, "batch": 2},
        LESS | {"cp": 2, "batch": 2, "microbatches": 2, "strategy": "full_shard"},
    ],
)
def test_what_does_more_takes_no_less(more: dict[str, Any]):
    known = predicted(10.0, **LESS)
    assert 0.9 * AT_LEAST * 10 < bound(known, **more) <= AT_LEAST * 10


@pytest.mark.parametrize(
    "other",
    [
        LESS | {"compile": "blocks"},
        LESS | {"tp": 2, "batch": 2},
        LESS | {"strategy": "no_shard"},
        LESS | {"batch": 2},
        LESS | {"pp": 2, "microbatches": 4, "batch": 4},
    ],
)
def test_nothing_follows_for_what_does_something_else(other: dict[str, Any]):
    assert bound(predicted(10.0, **LESS), **other) == 0


def test_choosing_what_to_compute_again_may_take_longer_than_all_of_it():
    """The host makes the choice, for each operator: a small model waits for it."""
    known = predicted(10.0, **LESS, checkpointing="selective")
    assert bound(known, **LESS, checkpointing="full") == 0


def test_nothing_follows_from_what_could_not_be_predicted():
    candidate = Candidate.of(asked_of("llama3-8b", **LESS))
    failed = Evaluated(candidate=candidate, cell=Cell(configuration=candidate.asked, error="no such operator"))
    assert bound(failed, strategy="full_shard") == 0


def test_more_microbatches_of_a_pipeline_may_be_faster():
    words = {"strategy": "full_shard", "pp": 2, "batch": 8}
    assert bound(predicted(10.0, **words, microbatches=4), **words, microbatches=8) == 0


FULL = {"strategy": "full_shard"}
"""Sharded by all GPUs."""


def bytes_known(needed: int, **words: Any) -> Evaluated:
    found = predicted(10.0, **words)
    assert found.cell.figures is not None
    return replace(found, cell=replace(found.cell, figures=replace(found.cell.figures, peak_allocated=needed)))


def test_what_gives_weights_back_bounds_the_memory_of_what_keeps_them():
    known = bytes_known(10**9, **FULL, checkpointing="full")
    for more in ({}, {"checkpointing": "full"}, {"cp": 2, "batch": 2, "checkpointing": "full"}):
        for strategy in ("full_shard", "shard_grad_op"):
            other = Candidate.of(asked_of("llama3-8b", **{"strategy": strategy} | more))
            assert known.bounds_bytes(other) == int(AT_LEAST * 10**9)


def test_nothing_follows_for_the_memory_of_what_may_keep_less():
    known = bytes_known(10**9, strategy="shard_grad_op", cp=2, batch=2)
    for less in (
        {"strategy": "full_shard", "cp": 2, "batch": 2},
        {"strategy": "shard_grad_op", "cp": 2, "batch": 2, "checkpointing": "selective"},
        {"strategy": "shard_grad_op"},
        {"strategy": "shard_grad_op", "cp": 2, "batch": 2, "microbatches": 2},
        {"strategy": "shard_grad_op", "tp": 2, "batch": 2},
    ):
        assert known.bounds_bytes(Candidate.of(asked_of("llama3-8b", **less))) == 0
