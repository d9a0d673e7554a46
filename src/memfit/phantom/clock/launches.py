"""Kernels that are not operators: Triton kernels, written by hand or by ``torch.compile``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from memfit.hardware import GIGA
from memfit.phantom.clock.describe import type_name
from memfit.phantom.current import find_world
from memfit.phantom.device.streams import current_stream_number
from memfit.timing.operators.attention import attention_call, price_attention
from memfit.timing.operators.calls import Bound, Cost, Operand
from memfit.timing.rates import MICRO
from memfit.timing.timeline import Captured

# -- what a kernel that Inductor wrote does with its arguments, read off its source ------------------------------------------

_SIGNATURE = re.compile(r"^def \w+\((.*?)\):", re.MULTILINE | re.DOTALL)
_ACCESS = re.compile(r"tl\.(load|store|atomic_add)\((\w+)")
_LOOP = re.compile(r"^ *for \w*offset in ", re.MULTILINE)
_SLOW_FUNCTION = re.compile(r"\b(?:libdevice|tl_math|tl)\.(?:exp2?|log|tanh|erf|sin|cos|pow|sigmoid)\(")


@dataclass(frozen=True)
class TritonSource:
    """What the source of a Triton kernel says about its cost."""

    accesses: tuple[tuple[int, int], ...]
    """Per parameter: the number of places where it is read and where it is written."""
    has_slow_loop: bool
    """True if it loops over its rows and computes an expensive function of every element."""

    def elements(self, arguments: Sequence[Any]) -> int:
        """How often its body runs. Its integer arguments are the sizes of its grid."""
        count = 1
        for value in arguments:
            if isinstance(value, int):
                count *= value
        return count

    def moved_bytes(self, arguments: Sequence[Any]) -> int:
        """Bytes read and written. A tensor that is both counts twice; one with few looked-up elements counts only these."""
        elements, total = self.elements(arguments), 0
        for value, accesses in zip(arguments, self.accesses, strict=False):  # block sizes are not given
            if isinstance(value, torch.Tensor):
                total += sum(min(value.numel(), elements * places) for places in accesses) * value.element_size()
        return total


@lru_cache(maxsize=4096)
def read_source(source: str) -> TritonSource | None:
    """Reads a kernel's source; ``None`` if Inductor did not write it."""
    found = _SIGNATURE.search(source)
    if found is None:
        return None
    names = [parameter.split(":")[0].strip() for parameter in found[1].split(",")]
    counts = {name: [0, 0] for name in names}
    for what, name in _ACCESS.findall(source):
        if name in counts:
            counts[name][what != "load"] += 1
    return TritonSource(
        accesses=tuple((reads, writes) for reads, writes in counts.values()),
        has_slow_loop=bool(_LOOP.search(source) and _SLOW_FUNCTION.search(source)),
    )


# -- launches ----------------------------------------------------------------------------------------------------------------
#
# Those that Inductor wrote move what their source says; others read or write what they are given, once.


def launched(name: str, arguments: Sequence[Any], source: TritonSource | None = None) -> None:
    """Advances the clock by a kernel launch."""
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


def launched_attention(
    kernel: str,
    tensors: Sequence[torch.Tensor],
    *,
    batch: int = 0,
    is_causal: bool = False,
    window: int = 0,
    dropout: float = 0.0,
    is_backward: bool = False,
    slowdown: float = 1.0,
) -> None:
    """Advances the clock by another library's attention, which takes as long as torch's with ``kernel`` (``flash``, ``cudnn``).

    ``tensors`` are queries, keys and values of batch, length, heads and dimension; with ``batch``, sequences one after the other,
    which are taken to be equally long. Of a ``window`` above 0 each query sees so many keys.
    """
    world = find_world()
    if world is None:
        return
    query, key, value = (_by_heads(tensor, batch) for tensor in tensors)
    if 0 < window < key.shape[2]:
        key, value = (replace(each, shape=(*each.shape[:2], window, each.shape[3])) for each in (key, value))
        is_causal = False
    clock = world.clock
    call = attention_call(kernel, query, key, value, is_causal=is_causal, dropout=dropout, is_backward=is_backward)
    cost = price_attention(call, clock.chip, clock.rates)
    host_seconds = clock.pace.operator(call, cost, is_backward, False, torch.is_grad_enabled())
    clock.launch(replace(cost, seconds=cost.seconds * slowdown), host_seconds)


def _by_heads(tensor: torch.Tensor, batch: int) -> Operand:
    *rows, heads, dim = (int(size) for size in tensor.shape)
    if batch:
        rows = [batch, max(1, rows[0] // batch)]
    return Operand(type_name(tensor.dtype), (rows[0], heads, rows[1], dim))


class CapturedGraph:
    """A CUDA graph: what runs between construction and ``end``. Launching it again takes the same time."""

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
