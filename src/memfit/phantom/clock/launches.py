"""Kernels that are no operators: Triton's, written by hand or by ``torch.compile``. They read and write what they are given,
once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from memfit.phantom.clock.operator_clock import OperatorClock
from memfit.timing import spending
from memfit.timing.operators.costs import Bound, Cost
from memfit.torch_compat.patches import Patches

SHARE: Final = 0.85
"""Of the memory's bandwidth: fused kernels come nearly as close to it as torch's own."""

START: Final = 2e-6

_clock: OperatorClock | None = None


def begin(patches: Patches, clock: OperatorClock) -> None:
    """Launches advance this clock, until the patches are undone."""
    global _clock
    _clock = clock
    spending.listen(clock.timeline.spend)
    patches.finally_call(_end)


def _end() -> None:
    global _clock
    _clock = None
    spending.listen(None)


def launched(name: str, arguments: Iterable[Any]) -> None:
    """A kernel would run now."""
    if _clock is None:
        return
    moved = sum(value.numel() * value.element_size() for value in arguments if isinstance(value, torch.Tensor))
    seconds = START + moved / (_clock.chip.memory_bandwidth * SHARE)
    _clock.launch(Cost(name, seconds, Bound.MEMORY, moved_bytes=moved), _clock.pace.kernel)
