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


def test_softmax_makes_its_result_and_works_in_place_backwards():
    with phantom():
        from scaled_masked_softmax_cuda import backward, forward, get_batch_per_block

        scores = torch.empty(2, 4, 128, 128, dtype=torch.bfloat16, device="cuda")
        probabilities = forward(scores, None, 1.0)
        assert (probabilities.shape, probabilities.dtype) == (scores.shape, scores.dtype)
        assert backward(scores, probabilities, 1.0) is scores
        assert (get_batch_per_block(128, 128, 2, 4), get_batch_per_block(1024, 1024, 2, 4)) == (8, 4)


def test_lists_of_tensors_are_scaled_in_place_and_have_norms():
    with phantom():
        import amp_C
        from apex.multi_tensor_apply import multi_tensor_applier

        flag, tensors = torch.zeros(1, dtype=torch.int, device="cuda"), [torch.empty(8, device="cuda") for _ in range(3)]
        assert multi_tensor_applier(amp_C.multi_tensor_scale, flag, [tensors, tensors], 2.0) is None
        norm, each = multi_tensor_applier(amp_C.multi_tensor_l2norm, flag, [tensors], True)
        assert (norm.shape, each.shape, norm.dtype) == ((1,), (3,), torch.float32)


def test_megatrons_norms_are_called_as_functions():
    with phantom():
        from apex.contrib.layer_norm.layer_norm import FastLayerNormFN
        from apex.normalization.fused_layer_norm import FusedLayerNormAffineFunction

        x, weight = torch.ones(4, 64, device="cuda", requires_grad=True), torch.ones(64, device="cuda", requires_grad=True)
        for made in (
            FusedLayerNormAffineFunction.apply(x, weight, weight, (64,), 1e-5),
            FastLayerNormFN.apply(x, weight, weight, 1e-5),
        ):
            made.sum().backward()
        assert weight.grad.shape == (64,)


def test_updates_and_norms_take_time():
    def build():
        norm = apex.FusedLayerNorm(1024).cuda()
        layer = torch.nn.Linear(1024, 1024, device="cuda")
        updates = apex.FusedAdam(layer.parameters(), lr=0.1)

        def step():
            norm(layer(torch.ones(512, 1024, device="cuda"))).sum().backward()
            updates.step()
            updates.zero_grad()

        return step

    spent = memfit.predict(build, gpu="H200", steps=2).time.breakdown().by_operator
    assert {"fused_update", "fused_norm", "fused_norm_backward"} <= spent.keys()
