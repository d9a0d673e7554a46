"""Losses: CTC, mean squared error, smooth L1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memfit.phantom.kernels.rule import Arguments, Kernel, Rule, bytes_of
from memfit.phantom.target import Target

aten = torch.ops.aten

# -- CTC -----------------------------------------------------------------------------------------------------------------------


def _ctc_loss_by_lists(target: Target) -> Kernel:
    """`ctc_loss.IntList`, with the lengths read back to the host."""

    def ctc_loss(
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: torch.Tensor,
        target_lengths: torch.Tensor,
        *rest: Any,
    ) -> torch.Tensor:
        steps, longest = log_probs.shape[0], targets.shape[-1] if targets.dim() == 2 else targets.shape[0] // target_lengths.numel()
        lengths = _lengths(input_lengths, steps), _lengths(target_lengths, longest)
        return aten.ctc_loss.IntList(log_probs, targets, *lengths, *rest)  # type: ignore[no-any-return]

    return ctc_loss


def _lengths(given: torch.Tensor, longest: int) -> list[int]:
    """Lengths on the host are known; of those on the GPU, every one is taken to be the longest."""
    return [longest] * given.numel() if given.is_cuda else given.flatten().tolist()


def _ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses, and a probability for every step and every place in a target that has blanks between its labels."""
    steps, batch = log_probs.shape[:2] if log_probs.dim() == 3 else (log_probs.shape[0], 1)
    longest = targets.shape[-1] if targets.dim() == 2 else -(-targets.shape[0] // batch)
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, 2 * longest + 1))


def _ctc_loss_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Three numbers for every sequence: two lengths, and where its target begins."""
    return (8 * args[0].shape[1],) * 3


def _ctc_loss_backward(grad: torch.Tensor, log_probs: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The gradient of the probabilities."""
    return log_probs.new_empty(log_probs.shape)


def _ctc_loss_backward_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """The backward counterpart of the probabilities that forward returned."""
    return (bytes_of(args[6]),)


# -- means of element-wise losses ----------------------------------------------------------------------------------------------


def _mean_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = 1, *args: Any) -> Any:
    """The mean in the memory of the losses of all elements: it is written over them, and their block lives as long as it does."""
    if not reduction:
        return NotImplemented
    shape = torch.broadcast_shapes(x.shape, target.shape)
    return x.new_empty(shape, dtype=torch.promote_types(x.dtype, target.dtype)).as_strided((), ())


def _mean_loss_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """The loss of every element, before their mean is taken."""
    return (bytes_of(args[0]),) if (args[2] if len(args) > 2 else 1) else ()


RULES = (
    Rule(operators=("ctc_loss.Tensor",), runs=_ctc_loss_by_lists, source="ATen/native/LossCTC.cpp"),
    Rule(operators=("_ctc_loss",), returns=_ctc_loss, takes=_ctc_loss_blocks, source="ATen/native/cuda/LossCTC.cu"),
    Rule(
        operators=("_ctc_loss_backward",),
        returns=_ctc_loss_backward,
        takes=_ctc_loss_backward_blocks,
        source="ATen/native/cuda/LossCTC.cu",
    ),
    Rule(operators=("mse_loss", "smooth_l1_loss"), returns=_mean_loss, takes=_mean_loss_blocks, source="ATen/native/Loss.cpp"),
)
