"""torchaudio: operators that it compiles, where training uses them.

Facts: src/libtorchaudio/rnnt/gpu/compute.cu and workspace.h: the loss of a transducer makes its costs and the gradient of all
logits at once, beside five float32 numbers for each pair of a frame and a target, and two counters for each target. ``lfilter``
writes into a tensor that it is given.
"""

from __future__ import annotations

from typing import Any

import torch

from memfit.phantom.clock.launches import launched
from memfit.phantom.current import current
from memfit.torch_compat.patches import Patches

NUMBERS = 5
"""For each frame and target: a denominator, the logarithms of two probabilities, and what the two passes have."""


def install(patches: Patches) -> None:
    patches.when_imported("torchaudio", lambda module: _replace(patches))


def _replace(patches: Patches) -> None:
    for name, function in (("rnnt_loss_forward", rnnt_loss_forward), ("_lfilter_core_loop", lfilter_core_loop)):
        if hasattr(torch.ops.torchaudio, name):
            patches.replace(torch.ops.torchaudio, name, function)


def rnnt_loss_forward(
    logits: torch.Tensor, targets: torch.Tensor, logit_lengths: torch.Tensor, target_lengths: torch.Tensor, *options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    current()
    batch, frames, length, _ = logits.shape
    costs, gradients = logits.new_empty(batch), torch.empty_like(logits).fill_(0.0)
    counters = logits.new_empty(2 * batch * length, dtype=torch.int32)
    numbers = logits.new_empty(NUMBERS * batch * frames * length, dtype=torch.float32)
    launched("rnnt_loss", [logits, gradients, numbers, counters])
    return costs, gradients


def lfilter_core_loop(signal: torch.Tensor, coefficients: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    current()
    launched("lfilter", [signal, padded])
    return padded
