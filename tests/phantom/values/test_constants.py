"""Tensors that are known to hold a constant."""

from __future__ import annotations

import torch
from helpers.phantom_worlds import phantom


def test_a_mask_of_ones_hides_nothing():
    with phantom():
        mask = torch.ones(2, 8, dtype=torch.int64, device="cuda").bool()
        assert bool(mask.sum() == mask.numel())
