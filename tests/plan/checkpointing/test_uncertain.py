"""What a run may need beyond its prediction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from memfit.allocator import parse_alloc_conf, requests_from_ledger, smallest_fit
from memfit.plan.checkpointing.trials import Trial
from memfit.plan.checkpointing.uncertain import MORE_STEPS, most_needed, with_more_steps
from memfit.testing import ledger
from memfit.units import MIB

SETTINGS = parse_alloc_conf("")


def needed(text: str) -> tuple[int, int]:
    """By the prediction, and at most."""
    made = ledger(text)
    requests = requests_from_ledger(made)
    return smallest_fit(requests, SETTINGS).capacity, most_needed(made, requests, SETTINGS)


def test_a_workspace_of_a_convolution_may_be_a_fifth_larger() -> None:
    by_prediction, most = needed("alloc 100MiB workspace aten.convolution.default; free aten.convolution.default")
    assert by_prediction == 100 * MIB
    assert most == 120 * MIB


def test_a_workspace_of_a_product_is_known() -> None:
    assert needed("alloc 100MiB workspace aten.mm.default; free aten.mm.default") == (100 * MIB, 100 * MIB)


def test_what_is_no_workspace_is_known() -> None:
    assert needed("alloc 100MiB aten.convolution.default; free aten.convolution.default") == (100 * MIB, 100 * MIB)


def test_a_workspace_that_stays_leaves_gaps_for_a_second_run() -> None:
    # A segment of 100 MiB with a workspace in it cannot be given back, and 90 MiB are no longer found in it.
    text = "alloc 100MiB x; free x; alloc 20MiB workspace aten.mm.default; alloc 78MiB y; free y; alloc 90MiB z; free z"
    by_prediction, most = needed(text)
    assert most > by_prediction


def test_the_last_step_goes_on_where_it_repeats() -> None:
    steps = "step; alloc 8MiB a; free old; step; alloc 8MiB b; free a; step; alloc 8MiB c; free b"
    made = ledger(f"alloc 8MiB old; {steps}")
    requests = requests_from_ledger(made)
    more = with_more_steps(made, requests)
    assert len(more) == len(requests) + 2 * MORE_STEPS
    assert smallest_fit(more, SETTINGS).capacity == smallest_fit(requests, SETTINGS).capacity  # each frees what the one before made
    # What is older than the step before is freed only once.
    other = ledger("alloc 8MiB old; alloc 8MiB older; step; alloc 8MiB a; free old; step; alloc 8MiB b; free older")
    assert len(with_more_steps(other, requests_from_ledger(other))) == 6


def test_what_gives_memory_back_in_its_third_step_is_not_steady_though_it_settles_later() -> None:
    early = "alloc 60MiB a; free a; step; alloc 60MiB b; free b; step; alloc 60MiB c; free c"
    late = "step; alloc 80MiB d; free d; step; alloc 80MiB e; free e"

    def is_steady(text: str) -> bool:
        made = ledger(text)
        prediction: Any = SimpleNamespace(ledger=made, requests=requests_from_ledger(made), alloc_conf="", torch_version="2.11")
        return Trial(None, prediction, 100 * MIB, 0.0).is_steady

    assert is_steady(f"step; {early}")
    assert not is_steady(f"step; {early}; {late}")
    assert is_steady(f"{late}; {late}")
