"""Operators that draw random numbers, called as compiled code calls them where it recomputes."""

from __future__ import annotations

import torch
from helpers.phantom_worlds import phantom


def test_an_operator_runs_with_a_random_state():
    with phantom():
        x = torch.ones(4, 8, device="cuda")
        dropout = torch.ops.aten.native_dropout.default
        higher_order = torch.ops.higher_order
        state, (dropped, mask) = higher_order.run_and_save_rng_state(dropout, x, 0.5, True)
        again, _ = higher_order.run_with_rng_state(state, dropout, x, 0.5, True)
        assert dropped.shape == again.shape == x.shape
        assert mask.dtype == torch.bool
        assert again.device.type == "cuda"
        graphsafe, _ = higher_order.graphsafe_run_with_rng_state(dropout, x, 0.5, True, rng_state=None)
        assert graphsafe.shape == x.shape
