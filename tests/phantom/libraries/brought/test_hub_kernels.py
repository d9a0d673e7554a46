"""Kernels of Hugging Face's hub, which are neither downloaded nor run."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom

from memfit.errors import NeedsGpuError


def test_flash_attention_of_the_hub_is_known_and_others_are_refused_by_name():
    with phantom():
        from kernels import get_kernel

        attend = get_kernel("kernels-community/flash-attn3", version=1).flash_attn_interface.flash_attn_varlen_func
        query = torch.empty(512, 4, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        starts = torch.tensor([0, 256, 512], dtype=torch.int32, device="cuda")
        out = attend(query, query, query, starts, starts, 256, 256, causal=True)
        assert (out.shape, out.dtype) == (query.shape, query.dtype)
        out.sum().backward()
        activation = get_kernel("kernels-community/activation")
        with pytest.raises(NeedsGpuError, match=r"gelu of the hub's kernels kernels-community/activation"):
            activation.gelu(query)
