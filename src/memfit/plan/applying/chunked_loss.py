"""Cross entropy, some rows at a time: the loss of large vocabularies without copies of all logits in float32.

::

    usual      logits ──> log-softmax, kept, in float32 too ──> loss        two or three tables as large as the logits
    in rows    logits ──> some rows: log-softmax, the target's entry ──> loss       backward does each log-softmax again

Every row is computed by the same kernels, and the rows are added up by the same one: losses and gradients are equal bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from memfit.torch_compat.patches import Patches

_REDUCTIONS: Final = {"mean": 1, "sum": 2}
"""As the operators number them."""
_NAMES: Final = {number: name for name, number in _REDUCTIONS.items()}


def chunk_losses(rows: int, patches: Patches) -> None:
    """Until the patches are undone, ``cross_entropy`` goes over so many rows at a time where it has more."""

    def make(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def cross_entropy(
            input: Tensor,
            target: Tensor,
            weight: Tensor | None = None,
            size_average: bool | None = None,
            ignore_index: int = -100,
            reduce: bool | None = None,
            reduction: str = "mean",
            label_smoothing: float = 0.0,
        ) -> Tensor:
            is_plain = weight is None and size_average is None and reduce is None and not label_smoothing
            is_table = input.dim() == 2 and target.dim() == 1 and not target.is_floating_point()
            is_lifted = input.device.type == "cpu" and torch.is_autocast_enabled("cpu")  # whose list has all of cross entropy
            is_meant = is_plain and is_table and not is_lifted and reduction in _REDUCTIONS and torch.is_grad_enabled()
            if not is_meant or len(input) <= rows:
                return original(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
            return InRows.apply(input, target, ignore_index, _REDUCTIONS[reduction], rows)  # type: ignore[no-any-return, no-untyped-call]

        return cross_entropy

    patches.wrap(F, "cross_entropy", make)


class InRows(torch.autograd.Function):
    """Cross entropy of a table of logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ignore_index: int, reduction: int, rows: int) -> Tensor:
        of_target = torch.empty(len(logits), 1, dtype=logits.dtype, device=logits.device)
        for part in _parts(len(logits), rows):
            seen = target[part, None]
            of_target[part] = _log_softmax(logits[part]).gather(1, seen.masked_fill(seen == ignore_index, 0))
        column = target.masked_fill(target != ignore_index, 0)  # the one column is every row's target
        loss = F.nll_loss(of_target, column, ignore_index=ignore_index, reduction=_NAMES[reduction])  # in float32 under autocast
        total = (target != ignore_index).sum().to(loss.dtype)
        ctx.save_for_backward(logits, target, total)
        ctx.asked = ignore_index, reduction, rows
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        logits, target, total = ctx.saved_tensors
        ignore_index, reduction, rows = ctx.asked
        found = torch.empty_like(logits)
        for part in _parts(len(logits), rows):
            again = _log_softmax(logits[part])
            lifted = again.to(total.dtype)
            of_loss = torch.ops.aten.nll_loss_backward(gradient, lifted, target[part], None, reduction, ignore_index, total)
            of_loss = of_loss.to(again.dtype)
            found[part] = torch.ops.aten._log_softmax_backward_data(of_loss, again, 1, again.dtype)
        return found, None, None, None, None


def _log_softmax(logits: Tensor) -> Tensor:
    """In the type of the logits, as ``cross_entropy`` asks for it: autocast does not lift what names its type."""
    return torch.log_softmax(logits, 1, dtype=logits.dtype)


def _parts(num_rows: int, rows: int) -> Iterator[slice]:
    return (slice(start, min(start + rows, num_rows)) for start in range(0, num_rows, rows))
