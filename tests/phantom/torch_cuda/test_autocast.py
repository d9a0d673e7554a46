"""CUDA's autocast for operators that take functions."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch.nn.attention.flex_attention import flex_attention


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_under_autocast_as_on_cuda():
    with phantom(), torch.autocast("cuda", torch.bfloat16):
        q, k, v = (torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        assert flex_attention(q, k, v).dtype is torch.bfloat16
