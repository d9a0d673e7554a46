"""What a run may need beyond its prediction, where cuDNN chooses."""

from __future__ import annotations

from memfit.allocator import parse_alloc_conf, requests_from_ledger, smallest_fit
from memfit.plan.checkpointing.uncertain import most_needed
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
    assert needed("alloc 100MiB workspace aten.mm.default; free aten.mm.default") == (100 * MIB, 0)


def test_what_is_no_workspace_is_known() -> None:
    assert needed("alloc 100MiB aten.convolution.default; free aten.convolution.default") == (100 * MIB, 0)
