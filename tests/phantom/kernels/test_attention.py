"""The attention kernel that the GPU would choose, by target and by call."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn

import memfit
from memfit.phantom.kernels.attention import AttentionCall, AttentionKernels
from memfit.phantom.target import Target

H200 = Target.parse("H200", "2.11+cu130")


def call(dtype=torch.bfloat16, dim=64, heads=4, kv_heads=4, mask=None, gqa=False, value_dim=0) -> AttentionCall:
    query = torch.empty(2, heads, 16, dim, dtype=dtype, device="meta")
    key = torch.empty(2, kv_heads, 16, dim, dtype=dtype, device="meta")
    value = torch.empty(2, kv_heads, 16, value_dim or dim, dtype=dtype, device="meta")
    return AttentionCall(query, key, value, mask, 0.0, False, None, gqa)


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
        (("H200", "2.11+cu130"), call(dim=192, value_dim=128), "cudnn"),
        (("H200", "2.11+cu130"), call(dim=192, value_dim=264), "efficient"),
        (("H200", "2.11+cu126"), call(dim=192, value_dim=128), "efficient"),
    ],
)
def test_the_attention_kernel(target, asked, chosen):
    assert AttentionKernels(Target.parse(*target)).choose(asked) == chosen


def test_users_can_switch_kernels_off():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert AttentionKernels(H200).choose(call()) == "math"


@pytest.mark.parametrize("is_trained", [False, True])
def test_cudnn_keeps_sums_where_a_gradient_is_asked_for(is_trained: bool):
    """After the seeds and the output, before its graph's 256 bytes: as an H200 allocates them."""

    def build():
        query = torch.randn(2, 4, 16, 64, device="cuda", dtype=torch.bfloat16, requires_grad=is_trained)
        return lambda: nn.functional.scaled_dot_product_attention(query, query, query)

    ledger = memfit.predict(build, gpu="H200", torch_version="2.11+cu130", steps=1).ledger
    asked = [size for size in ledger.events.size[ledger.birth].tolist() if size]
    assert asked[-4 - is_trained :] == [8, 8, 2 * 4 * 16 * 64 * 2, *[2 * 4 * 16 * 4] * is_trained, 256]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_runs_forward_and_backward(dtype):
    with phantom():
        query = torch.randn(2, 4, 16, 64, device="cuda", dtype=dtype, requires_grad=True)
        nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
        assert query.grad.shape == query.shape
