"""Cross entropy some rows at a time gives the same bits as all at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from memfit.plan.applying.chunked_loss import InRows, chunk_losses
from memfit.torch_compat.patches import Patches


def losses(dtype: torch.dtype, reduction: str, *, rows: int, lifted: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    logits = torch.randn(1000, 97, dtype=dtype, requires_grad=True)
    target = torch.randint(0, 97, (1000,))
    target[::7] = -100
    patches = Patches("a test").because("rows")
    if rows:
        chunk_losses(rows, patches)
    try:
        loss = F.cross_entropy(logits.float() if lifted else logits, target, reduction=reduction)
        loss.backward()
    finally:
        patches.undo()
    assert logits.grad is not None
    return [loss.detach(), logits.grad]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_and_gradients_are_equal_bit_by_bit(dtype: torch.dtype, reduction: str) -> None:
    for usual, in_rows in zip(losses(dtype, reduction, rows=0), losses(dtype, reduction, rows=128), strict=True):
        assert torch.equal(usual, in_rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_so_are_those_of_logits_that_stay_as_short_as_they_are(reduction: str, dtype: torch.dtype) -> None:
    for usual, in_rows in zip(*(losses(dtype, reduction, rows=rows, lifted=False) for rows in (0, 128)), strict=True):
        assert usual.dtype is in_rows.dtype
        assert torch.equal(usual, in_rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_so_are_those_under_cudas_autocast(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the log-softmax is rounded to the type of the logits, and the loss of it is taken in float32. nanoGPT trains so."""
    of_logarithms = F.nll_loss
    monkeypatch.setattr(F, "nll_loss", lambda input, *args, **kwargs: of_logarithms(input.float(), *args, **kwargs))
    usual = torch.randn(1000, 97, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_()
    in_rows = usual.detach().clone().requires_grad_()
    target = torch.arange(1000) % 97
    one = F.nll_loss(torch.log_softmax(usual, 1), target)
    other = InRows.apply(in_rows, target, -100, 1, 128)
    for loss in (one, other):
        loss.backward()
    assert other.dtype is torch.float32
    assert torch.equal(one, other)
    assert torch.equal(usual.grad, in_rows.grad)


def test_what_is_not_plain_is_left_to_torch() -> None:
    patches = Patches("a test").because("rows")
    logits, target = torch.randn(8, 5), torch.randint(0, 5, (8,))
    usual = F.cross_entropy(logits, target, weight=torch.arange(5.0), label_smoothing=0.1)
    chunk_losses(2, patches)
    try:
        assert torch.equal(usual, F.cross_entropy(logits, target, weight=torch.arange(5.0), label_smoothing=0.1))
    finally:
        patches.undo()
