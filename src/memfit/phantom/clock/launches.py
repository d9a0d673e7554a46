"""Kernels that are no operators: Triton's, written by hand or by ``torch.compile``.

Those that Inductor wrote move what their source says; others read or write what they are given, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memfit.hardware import GIGA
from memfit.phantom.clock.triton_source import TritonSource
from memfit.phantom.current import find_world
from memfit.phantom.device.streams import current_stream_number
from memfit.timing.operators.costs import Bound, Cost
from memfit.timing.rates import MICRO
from memfit.timing.timeline import Captured


def launched(name: str, arguments: Sequence[Any], source: TritonSource | None = None) -> None:
    """A kernel would run now."""
    world = find_world()
    if world is None:
        return
    clock = world.clock
    chip, rates = clock.chip, clock.rates
    if source is None:
        moved = sum(value.numel() * value.element_size() for value in arguments if isinstance(value, torch.Tensor))
    else:
        moved = source.moved_bytes(arguments)
    seconds = moved / (chip.memory_bandwidth * rates.compiled.memory_share)
    if source is not None and source.has_slow_loop:
        seconds = max(seconds, source.elements(arguments) / (rates.compiled.slow_loop * GIGA) * rates.f32_flops / chip.f32_flops)
    start = rates.compiled.start_us * MICRO
    clock.launch(Cost(name, start + seconds, Bound.MEMORY, moved_bytes=moved), clock.pace.kernel)


class CapturedGraph:
    """What runs between its making and ``end``: a CUDA graph, which takes as long when it is launched again."""

    def __init__(self) -> None:
        world = find_world()
        self._first_span = 0 if world is None else world.clock.timeline.num_spans
        self._kernels: Captured = ()

    def end(self) -> None:
        if (world := find_world()) is not None:
            self._kernels = world.clock.timeline.captured_since(self._first_span)

    def launch(self) -> None:
        if (world := find_world()) is not None:
            world.clock.timeline.spend(world.clock.pace.graph)
            world.clock.timeline.run_again(current_stream_number(), self._kernels)
