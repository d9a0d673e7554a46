"""Tensors that are known to hold a constant."""

from __future__ import annotations

import torch
from helpers.phantom_worlds import phantom


def test_a_mask_of_ones_hides_nothing():
    with phantom():
        mask = torch.ones(2, 8, dtype=torch.int64, device="cuda").bool()
        assert bool(mask.sum() == mask.numel())


def test_checks_for_infinities_are_counted_and_find_none():
    with phantom():
        grad, count = torch.randn(8, device="cuda"), torch.zeros(1, device="cuda")
        count += torch.isinf(grad).any()
        assert count.bool().byte()[0].item() == 0
        found = torch.zeros(1, dtype=torch.bool, device="cuda")
        found.logical_or_(torch.isnan(grad).any())
        assert not found.item()
        count += 1
        assert count.item() == 1.0  # made up: sums of numbers are not followed
        assert (torch.zeros(1, device="cuda") + grad.sum()).item() == 1.0


def test_weights_are_not_all_zero_and_checks_pass():
    with phantom():
        weight = torch.randn(8, device="cuda")
        assert weight.any()
        assert not (weight < 0).any()
        assert torch._is_all_true(weight > 0)
        torch._check_tensor_all(weight > 0)
        scale = torch.distributions.Normal(weight, weight.exp()).rsample()
        assert torch.distributions.Categorical(logits=scale).sample().shape == ()


def test_one_operand_can_decide_and_a_row_of_a_mask_has_at_most_all():
    with phantom():
        unknown = torch.randn(2, 8, device="cuda") > 0
        every, none = torch.full((2, 8), True, device="cuda"), torch.full((2, 8), False, device="cuda")
        assert (every | unknown).all().item()
        assert not (~(none | every | unknown).all()).item()
        assert not (unknown & none).any().item()
        assert unknown.sum(dim=1).max().item() == 8


def test_no_factorization_fails():
    with phantom():
        matrix = torch.randn(3, 8, 8, device="cuda")
        assert not torch.linalg.cholesky_ex(matrix).info.any()
        assert not torch.linalg.inv_ex(matrix).info.any()
        assert not torch.linalg.lu_factor_ex(matrix).info.any()
        factor, info = matrix.clone(), torch.ones(3, dtype=torch.int32, device="cuda")
        torch.linalg.cholesky_ex(matrix, out=(factor, info))
        assert not info.any()
