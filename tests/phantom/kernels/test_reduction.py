"""The partial sums of CUDA's reductions."""

from __future__ import annotations

import torch

from memfit.phantom.kernels import RULES
from memfit.phantom.kernels.reduction import staging_blocks
from memfit.phantom.target import Target

H200 = Target.parse("H200", "2.11+cu130")


def test_sums_stage_what_an_h200_staged():
    """Sizes from the traces in benchmarks/truth."""
    x = torch.empty(4, 2048, 1024, device="meta")
    assert staging_blocks(H200, x, (0, 1)) == (67108864, 32)
    assert staging_blocks(H200, torch.empty(2, 2048, 1024, device="meta"), (0, 1)) == (33554432, 32)
    assert staging_blocks(H200, x, (-1,)) == ()


def test_norms_stage_by_whatever_name():
    """Weight normalization of wav2vec 2.0 starts with such a norm: sizes from its trace."""
    weight = torch.empty(768, 48, 128, device="meta")
    for operator in (torch.ops.aten.linalg_vector_norm.default, torch.ops.aten.norm.ScalarOpt_dim):
        assert RULES.get(operator).takes(H200, (weight, 2, [0, 1], True), None) == (37748736, 4)
