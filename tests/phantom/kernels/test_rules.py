"""The kernels that the GPU would choose, by target and by call."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn

from memfit.phantom.kernels.attention import Attention, Call
from memfit.phantom.kernels.libraries import cublas_workspace, cublaslt_workspace
from memfit.phantom.kernels.reduction import staging_blocks
from memfit.phantom.target import Target

H200 = Target.parse("H200", "2.11+cu130")


def call(dtype=torch.bfloat16, dim=64, heads=4, kv_heads=4, mask=None, gqa=False) -> Call:
    query = torch.empty(2, heads, 16, dim, dtype=dtype, device="meta")
    key = torch.empty(2, kv_heads, 16, dim, dtype=dtype, device="meta")
    return Call(query, key, key, mask, 0.0, False, None, gqa)


@pytest.mark.parametrize(
    ("target", "asked", "chosen"),
    [
        (("H200", "2.11+cu130"), call(), "cudnn"),
        (("H200", "2.11+cu126"), call(), "flash"),
        (("H200", "2.10+cu128"), call(), "flash"),
        (("A100-80GB", "2.11+cu130"), call(), "flash"),
        (("H200", "2.11+cu130"), call(torch.float32), "efficient"),
        (("H200", "2.11+cu130"), call(kv_heads=2, gqa=True), "cudnn"),
        (("H200", "2.11+cu130"), call(torch.float32, kv_heads=2, gqa=True), "math"),
        (("A100-80GB", "2.11+cu130"), call(mask=torch.empty(16, 16, device="meta")), "efficient"),
        (("H200", "2.11+cu130"), call(dim=63), "flash"),
        (("H200", "2.11+cu130"), call(torch.float64), "math"),
    ],
)
def test_the_attention_kernel(target, asked, chosen):
    assert Attention(Target.parse(*target)).choose(asked) == chosen


def test_users_can_switch_kernels_off():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert Attention(H200).choose(call()) == "math"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_runs_forward_and_backward(dtype):
    with phantom():
        query = torch.randn(2, 4, 16, 64, device="cuda", dtype=dtype, requires_grad=True)
        nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
        assert query.grad.shape == query.shape


def test_sums_stage_what_an_h200_staged():
    """Sizes from the traces in benchmarks/truth."""
    x = torch.empty(4, 2048, 1024, device="meta")
    assert staging_blocks(H200, x, (0, 1)) == (67108864, 32)
    assert staging_blocks(H200, torch.empty(2, 2048, 1024, device="meta"), (0, 1)) == (33554432, 32)
    assert staging_blocks(H200, x, (-1,)) == ()


def test_libraries_workspaces():
    assert (cublas_workspace(H200), cublaslt_workspace(H200)) == (32 * 2**20, 2**20)
    assert cublas_workspace(Target.parse("A100-80GB", "2.11")) == 8519680
    assert cublaslt_workspace(Target.parse("H200", "2.12")) == 0
