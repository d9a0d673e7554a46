"""Activation checkpointing by replay: exact on hand-made runs, and against runs that really are checkpointed."""

import numpy as np
import pytest
import torch
from helpers.arbitrary_ledgers import ledgers
from helpers.failed_runs import failed
from hypothesis import given, settings
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import memfit
from memfit.allocator import RequestKind, replay, requests_from_ledger
from memfit.explain import explain
from memfit.explain.checkpointing import checkpoint, find_units
from memfit.explain.variants import Variant
from memfit.ledger import Ledger
from memfit.testing import ledger
from memfit.units import MIB

LAYER = """
    enter forward layers.{i}
      enter forward layers.{i}.up; alloc 30MiB up{i} on cuda:0; alloc 10MiB t{i} on cuda:0; free t{i}; exit
      alloc 20MiB out{i} on cuda:0
    exit giving 20MiB
"""
BACKWARD = "enter backward layers.{i}; alloc 20MiB g{i} on cuda:0; free up{i}; free out{i}; free g{i}; exit"
SETTING_UP = "alloc 40MiB parameter layers.0.up.w on cuda:0; alloc 40MiB parameter layers.1.up.w on cuda:0; step; enter forward .;"


def two_layers() -> str:
    forward = "".join(LAYER.format(i=i) for i in range(2))
    return f"{SETTING_UP} {forward} exit; enter backward; {BACKWARD.format(i=1)}; {BACKWARD.format(i=0)}; exit"


def checkpointed(run: Ledger) -> Variant | None:
    variant = Variant.of(requests_from_ledger(run))
    assert variant is not None
    return checkpoint(variant)


def test_the_units_are_the_repeated_layers():
    run = ledger(two_layers())
    assert [run.module_path(unit) for unit in find_units(run)] == ["layers.0", "layers.1"]


def test_what_a_layer_saved_is_freed_and_made_again():
    run = ledger(two_layers())
    before = replay(requests_from_ledger(run))
    variant = checkpointed(run)
    assert variant is not None
    after = replay(variant.requests)
    assert before.peak_allocated == (80 + 2 * 50 + 20) * MIB
    # In layer 1's backward: both outputs are kept, layer 1's own 30 are made again, then its gradient comes.
    assert after.peak_allocated == (80 + 2 * 20 + 30 + 20) * MIB
    assert after.allocated[-1] == before.allocated[-1] == 80 * MIB


def test_in_a_run_that_failed_before_backward_nothing_is_made_again():
    forward = "".join(LAYER.format(i=i) for i in range(2))
    found = explain(failed(f"{SETTING_UP} {forward}", 850, 180))
    remedy = next(remedy for remedy in found.remedies if remedy.kind == "checkpointing")
    assert remedy.peak_allocated == (80 + 2 * 20 + 850) * MIB
    assert remedy.served is True


@pytest.mark.parametrize(
    "script",
    [
        "enter forward layers.0; alloc 30MiB x on cuda:0; exit; enter forward layers.1; alloc 30MiB y on cuda:0; exit",  # leaves
        "enter forward a.b; alloc 30MiB x on cuda:0; exit",  # nothing repeats
        two_layers() + "; enter backward; enter recompute layers.0; exit; exit",  # checkpointed already
    ],
)
def test_where_there_is_nothing_to_checkpoint(script: str):
    assert checkpointed(ledger(script)) is None


def test_a_forward_that_runs_twice_before_its_backward_is_left_alone():
    forward = "".join(LAYER.format(i=i) for i in range(2))
    again = forward.replace("up0 ", "up2 ").replace("up1 ", "up3 ").replace("out", "oot").replace(" t", " s")
    run = ledger(f"{SETTING_UP} {forward} {again} exit; enter backward; {BACKWARD.format(i=1)}; {BACKWARD.format(i=0)}; exit")
    variant = checkpointed(run)
    assert variant is not None  # of the second forwards alone
    freed_early = np.flatnonzero(variant.requests.kind == RequestKind.FREE)
    assert len(freed_early) > 0
    assert replay(variant.requests).allocated[-1] == replay(requests_from_ledger(run)).allocated[-1]


# -- real models -------------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(256), nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.layers, self.head, self.checkpointed = nn.ModuleList(Layer() for _ in range(6)), nn.Linear(256, 500), checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch_checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.head(x)


def predicted(batch: int, *, checkpointed: bool = False, autocast: bool = False) -> memfit.Prediction:
    def build():
        model = Model(checkpointed).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(batch, 128, 256, device="cuda")

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return memfit.predict(build, steps=2)


@pytest.mark.parametrize("autocast", [False, True])
def test_it_is_what_a_checkpointed_run_needs(autocast: bool):
    plain, real = predicted(64, autocast=autocast), predicted(64, checkpointed=True, autocast=autocast)
    variant = checkpointed(plain.ledger)
    assert variant is not None
    found = replay(variant.requests, plain.replay.settings)
    assert int(real.peak_allocated) < 0.7 * int(plain.peak_allocated)
    # Backward lets go of what was made again a little sooner than of what was saved.
    assert 0.999 * int(real.peak_allocated) <= found.peak_allocated <= 1.06 * int(real.peak_allocated)


@pytest.mark.parametrize("autocast", [False, True])
def test_half_the_micro_batch_is_what_a_run_of_half_the_batch_needs(autocast: bool):
    whole, half = predicted(64, autocast=autocast), predicted(32, autocast=autocast)
    variant = Variant.of(whole.requests)
    assert variant is not None
    found = replay(variant.scaled(0.5).requests, whole.replay.settings)
    assert found.peak_allocated == pytest.approx(int(half.peak_allocated), rel=0.005)


# -- laws --------------------------------------------------------------------------------------------------------------------


@given(run=ledgers)
@settings(max_examples=60)
def test_variants_are_requests_that_a_program_could_make(run: Ledger):
    requests = requests_from_ledger(run)
    variant = Variant.of(requests)
    assert variant is not None
    once = checkpoint(variant)
    if once is not None:
        assert replay(once.requests).completes
    halved = variant.scaled(0.5).requests
    assert (halved.size <= requests.size).all()
    assert ((halved.size > 0) == (requests.size > 0)).all()
