"""Fused optimizers and norms."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom

import memfit
from memfit.ledger import Category
from memfit.phantom.libraries import apex
from memfit.phantom.libraries.deepspeed import DeepSpeedFusedAdam
from memfit.units import MIB


@pytest.mark.parametrize(
    ("optimizer", "options", "state_bytes"),
    [
        (apex.FusedAdam, {}, 8 * MIB),
        (DeepSpeedFusedAdam, {}, 4 * MIB),
        (apex.FusedLAMB, {}, 4 * MIB),
        (apex.FusedSGD, {"momentum": 0.9}, 2 * MIB),
        (apex.FusedSGD, {}, 0),
        (apex.FusedNovoGrad, {}, 2 * MIB),
    ],
)
def test_state_of_a_parameter_of_2_mib_in_bfloat16(optimizer, options, state_bytes):
    def build():
        layer = torch.nn.Linear(1024, 1024, bias=False, device="cuda", dtype=torch.bfloat16)
        updates = optimizer(layer.parameters(), lr=0.1, **options)

        def step():
            layer(torch.ones(8, 1024, device="cuda", dtype=torch.bfloat16)).sum().backward()
            updates.step()
            updates.zero_grad()

        return step

    prediction = memfit.predict(build, gpu="H200", steps=2)
    state = prediction.ledger and prediction.breakdown.get(Category.OPTIMIZER_STATE, 0)
    assert state == state_bytes


def test_norms_keep_their_input_and_a_number_or_two_for_each_row():
    with phantom():
        for kind, num_rows in ((apex.FusedLayerNorm, 2), (apex.FusedRMSNorm, 1)):
            norm = kind(64).cuda()
            out = norm(torch.ones(4, 8, 64, device="cuda", requires_grad=True))
            kept = [tensor.shape for tensor in out.grad_fn.saved_tensors]
            assert kept.count((32,)) == num_rows
            assert (4, 8, 64) in kept
            out.sum().backward()
            assert norm.weight.grad.shape == (64,)
