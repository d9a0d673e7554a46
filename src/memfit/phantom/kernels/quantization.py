"""Fake quantisation, as quantisation-aware training does it."""

from __future__ import annotations

from typing import Any

import torch

from memfit.phantom.kernels.rule import Rule


def _with_a_mask(x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The rounded values, and a mask of those that were inside the range."""
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


RULES = (
    Rule(
        operators=(
            "fake_quantize_per_tensor_affine_cachemask",
            "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
            "fake_quantize_per_channel_affine_cachemask",
        ),
        returns=_with_a_mask,
        source="ATen/native/quantized/FakeQuantPerTensorAffine.cpp, FakeQuantPerChannelAffine.cpp",
    ),
)
