"""What a run takes of the host's memory."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

import memfit
from memfit.ledger import LedgerBuilder, RunInfo
from memfit.predict.host import host_memory
from memfit.units import GIB, MIB
from memfit.views.verdicts import host_words


def ledger_of(*changes: int) -> memfit.Ledger:
    """Positive numbers are blocks of so many MiB on the host, -2 frees the second of them."""
    builder = LedgerBuilder(RunInfo(source="predicted"))
    device, op = builder.device("cpu"), builder.string("aten::empty")
    for change in changes:
        if change > 0:
            builder.alloc(change * MIB, device, op)
        else:
            builder.free(-change - 1)
    return builder.build()


def test_tensors_count_as_they_are():
    found = host_memory(ledger_of(3, 5, -1, 1), ())
    assert (found.peak, found.pinned) == (8 * MIB, 0)


def test_pinned_memory_is_rounded_up_and_kept():
    found = host_memory(ledger_of(3, -1, 4, -2, 3, 3), (0, 1, 2, 3))
    assert (found.peak, found.pinned) == (8 * MIB, 8 * MIB)
    assert host_memory(ledger_of(5, -1, 4), (0, 1)).peak == 12 * MIB  # another size is another block


def test_a_run_without_the_host():
    assert host_memory(LedgerBuilder().build(), ()).peak == 0


@given(st.lists(st.integers(1, 64), max_size=8), st.sets(st.integers(0, 7)))
def test_pinning_never_takes_less_and_at_most_twice_as_much(sizes: list[int], pinned: set[int]):
    ledger = ledger_of(*sizes)
    pageable = host_memory(ledger, ()).peak
    found = host_memory(ledger, [number for number in pinned if number < len(sizes)]).peak
    assert pageable <= found <= 2 * pageable


def predicted(pin: bool):
    def build():
        model = nn.Linear(1024, 1024).cuda()
        kept = torch.empty(300 * MIB, dtype=torch.uint8, pin_memory=pin)
        copied = torch.empty(300 * MIB, dtype=torch.uint8).pin_memory() if pin else None

        def step():
            model(torch.randn(8, 1024, device="cuda")).sum().backward()
            return kept, copied

        return step

    return memfit.predict(build, gpu="H200", steps=1)


def test_a_prediction_knows_what_is_pinned():
    plain, pinned = predicted(False).host, predicted(True).host
    assert 300 * MIB <= plain.peak < 310 * MIB
    assert plain.pinned == 0
    assert pinned.pinned == GIB
    assert GIB + 300 * MIB <= pinned.peak < GIB + 310 * MIB


@pytest.mark.parametrize("pin", [False, True])
def test_only_much_is_said(pin: bool):
    console = Console(file=io.StringIO(), width=120)
    console.print(predicted(pin))
    assert ("On the host" in console.file.getvalue()) is pin


@pytest.mark.parametrize(("limit", "fits"), [(None, None), (16 * MIB, True), (15 * MIB, False)])
def test_all_processes_of_a_node_share_its_memory(limit: int | None, fits: bool | None):
    found = host_memory(ledger_of(3, 5), (), num_processes=2, limit=limit)
    assert (found.of_node, found.fits) == (16 * MIB, fits)
    words = " ".join(host_words(found))
    assert ("fits into" in words, "is more than" in words) == (fits is True, fits is False)
    assert ("its 2 processes" in words) is (limit is not None)


@pytest.mark.parametrize(("non_blocking", "pinned"), [(True, 512 * MIB), (False, 0)])
def test_what_is_copied_from_the_gpu_without_waiting_is_pinned(non_blocking: bool, pinned: int):
    def build():
        source = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
        kept = []

        def step():
            kept.append(source.to("cpu", non_blocking=non_blocking))
            assert kept[0].is_pinned() == non_blocking

        return step

    host = memfit.predict(build, gpu="T4", steps=1).host
    assert host.pinned == pinned
    assert host.peak - pinned == (0 if pinned else 300 * MIB)


def test_operators_that_are_made_of_others_have_no_pinned_results():
    """A compiled model that computes dropout again calls one; the recorder once failed on it."""

    def build():
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        dropout = torch.ops.aten.native_dropout.default
        return lambda: torch.ops.higher_order.graphsafe_run_with_rng_state(dropout, weight.detach(), 0.5, True, rng_state=None)

    ledger = memfit.predict(build, gpu="H200", steps=1).ledger
    assert ledger.info.complete, ledger.info.problem
