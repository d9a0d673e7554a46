"""What writing by index takes, and what backward does in place; sizes from benchmarks/truth/kernel_memory.json."""

from __future__ import annotations

import pytest
import torch

import memfit
from memfit.phantom.kernels import indexing
from memfit.phantom.kernels.rule import ResultPlace
from memfit.phantom.target import Target

H200 = Target.parse("H200", "2.11+cu130")


def peak_of(function) -> int:
    """Of a step that computes a gradient, above what was there before it."""

    def build():
        x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
        return lambda: torch.autograd.grad(function(x).sum(), x)

    prediction = memfit.predict(build, steps=1)
    return prediction.steps[0].peak_allocated - 4 * 2**20


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.gather(1, torch.zeros(1024, 1, dtype=torch.int64, device="cuda")),
        lambda x: x.max(1).values,
        lambda x: x.topk(2, 1).values,
        lambda x: x.index_select(0, torch.zeros(4, dtype=torch.int64, device="cuda")),
        lambda x: x[torch.zeros(4, dtype=torch.int64, device="cuda")],
    ],
    ids=["gather", "max", "topk", "index_select", "index"],
)
def test_backward_writes_into_its_zeros(function):
    assert peak_of(function) < 5 * 2**20  # one gradient of 4 MiB, not two


def test_forward_does_not():
    def scattered(x):
        kept = torch.zeros_like(x)
        return kept.index_put((torch.zeros(4, dtype=torch.int64, device="cuda"),), x[:4], accumulate=True) + kept

    assert peak_of(scattered) >= 12 * 2**20


def test_sums_by_index_sort_only_where_they_add():
    x, index = torch.empty(8192, 64, device="meta"), torch.empty(4096, dtype=torch.int64, device="meta")
    assert indexing.index_put_blocks(H200, (x, [index], x), None) == ()
    assert tuple(indexing.index_put_blocks(H200, (x, [index], x, True), None)) == (32768, 32768, -1, 32768, 32768, 32768, 71167)


def test_embeddings():
    grad, index = torch.empty(16, 512, 768, device="meta"), torch.empty(16, 512, dtype=torch.int64, device="meta")
    assert indexing.embedding_backward(H200, (grad, index[:2], 30522), None) == (ResultPlace(0),)
    part, column = torch.empty(24, 1024, device="meta")[:, :512], torch.empty(24, 9, dtype=torch.int64, device="meta")[:, 1]
    assert indexing.embedding_backward(H200, (part, column, 64), None) == (24 * 8, 24 * 512 * 4, ResultPlace(0))
    turned = indexing.embedding_backward(H200, (grad.transpose(0, 1), index.t(), 512), None)
    assert tuple(turned) == (8 * 8192, 4 * 8192 * 768, *indexing.embedding_backward(H200, (grad, index, 512), None))
    assert indexing.embedding_backward(H200, (grad, index, 512), None)[-1] == 4088832
    few = indexing.embedding_backward(H200, (grad.bfloat16(), index, 2), None)
    assert few[-1] == 4 * 2 * 768
