"""Seconds of attention, by the kernel that runs it: blocks of queries over the multiprocessors, each along all of its keys.

Rates were fitted to the calls of the family ``attention`` in ``benchmarks/truth/operator_times.json`` (an H200, cuDNN 9.19, the
FlashAttention 2 and the memory-efficient kernels of torch 2.11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from memfit.timing.chips import MICRO, Chip
from memfit.timing.operators.calls import Call
from memfit.timing.operators.costs import Bound, Cost

BLOCK: Final = 128
"""Queries, and keys, of a block."""

BACKWARD_FLOPS: Final = 2.5
"""Five products where forward has two."""


@dataclass(frozen=True)
class Kernel:
    """Shares of the GPU's peak for its type, by the size of a head: 64, 128 and 256."""

    forward: tuple[float, float, float]
    backward: tuple[float, float, float]


_TERA_PER_PEAK: Final = 1 / 989.4

CUDNN: Final = Kernel((470 * _TERA_PER_PEAK, 679 * _TERA_PER_PEAK, 600 * _TERA_PER_PEAK), (0.505, 0.644, 0.45))
FLASH: Final = Kernel((295 * _TERA_PER_PEAK, 365 * _TERA_PER_PEAK, 300 * _TERA_PER_PEAK), (0.287, 0.319, 0.23))
EFFICIENT: Final = Kernel((126 * _TERA_PER_PEAK, 176 * _TERA_PER_PEAK, 150 * _TERA_PER_PEAK), (0.104, 0.1415, 0.024))
EFFICIENT_F32: Final = Kernel((37.6 / 66.9, 54.8 / 66.9, 54.8 / 66.9), (39 / 66.9, 44.7 / 66.9, 0.4))
"""Shares of float32's peak: it uses tensor cores in the tf32 format no more than cuBLAS does."""

MASKED: Final = (1.4, 1.09)
"""So many times as long with a mask, forward and backward, in the memory-efficient kernels."""

DROPPED: Final = (2.2, 1.25)
"""So many times as long with dropout: the calls of a BERT in training, against the same without."""


def price_attention(call: Call, chip: Chip) -> Cost:
    """``_scaled_dot_product_{flash,efficient,cudnn}_attention`` and their backward."""
    is_backward = call.name.endswith("_backward")
    heads = [tensor for tensor in call.inputs if len(tensor.shape) == 4]
    query, key, value = heads[1:4] if is_backward else heads[:3]
    batch, num_heads, queries, width = query.shape
    keys = key.shape[2]
    flops = 2.0 * batch * num_heads * queries * keys * (width + value.shape[3]) * (BACKWARD_FLOPS if is_backward else 1.0)
    is_causal, has_mask, dropout = _options(call, is_backward)
    kernel = _kernel(call.name, query.dtype)
    peak = chip.product_flops(query.dtype)
    share = _at_width(kernel.backward if is_backward else kernel.forward, width)

    blocks_of_keys = math.ceil(keys / BLOCK)
    along = min(float(blocks_of_keys), (blocks_of_keys + 1) / 2 + width / 42) if is_causal else float(blocks_of_keys)
    block_flops = 2.0 * BLOCK * BLOCK * (width + value.shape[3]) * (BACKWARD_FLOPS if is_backward else 1.0)
    per_block = along * block_flops * chip.num_sms / (peak * share) + (3.0 if is_backward else 1.5) * MICRO
    waves = max(1.0, batch * num_heads * math.ceil(queries / BLOCK) / chip.num_sms)
    seconds = waves * per_block
    if has_mask and "efficient" in call.name:
        seconds *= MASKED[is_backward]
    if dropout:
        seconds *= DROPPED[is_backward]
    moved = sum(tensor.size_bytes for tensor in (*call.inputs, *call.outputs))
    # Backward begins and ends with kernels of its own over all of its tensors.
    beside = moved / (chip.memory_bandwidth * 0.9) + 5 * MICRO if is_backward else 2 * MICRO
    seconds = max(seconds, moved / (chip.memory_bandwidth * 0.9)) + beside
    counted = flops / 2 if is_causal and queries == keys else flops
    return Cost(
        call.operator,
        max(seconds, counted / peak),
        Bound.ARITHMETIC,
        num_kernels=3 if is_backward else 1,
        flops=counted,
        moved_bytes=moved,
        flops_type=query.dtype,
    )


def _kernel(name: str, dtype: str) -> Kernel:
    if "cudnn" in name:
        return CUDNN
    if "efficient" in name:
        return EFFICIENT_F32 if dtype in ("f32", "f64") else EFFICIENT
    return FLASH


def _at_width(shares: tuple[float, float, float], width: int) -> float:
    """Between the sizes that were measured, and in proportion below them."""
    if width <= 64:
        return shares[0] * width / 64
    low, high, at = (0, 1, (width - 64) / 64) if width <= 128 else (1, 2, min(1.0, (width - 128) / 128))
    return shares[low] + (shares[high] - shares[low]) * at


def _options(call: Call, is_backward: bool) -> tuple[bool, bool, float]:
    """Is it causal, has it a mask, how much is dropped? The three operators have their arguments at different places."""
    arguments = call.arguments
    if "flash" in call.name:
        dropout, causal = (10, 11) if is_backward else (3, 4)
        return bool(_at(arguments, causal)), False, float(_at(arguments, dropout) or 0.0)
    if "cudnn" in call.name:
        mask, dropout, causal = (8, 13, 14) if is_backward else (3, 5, 6)
    else:
        mask, dropout, causal = (4, 9, 11) if is_backward else (3, 5, 6)
    has_mask = _at(arguments, mask) is not None
    return bool(_at(arguments, causal)), has_mask, float(_at(arguments, dropout) or 0.0)


def _at(arguments: tuple[object, ...], index: int) -> float | None:
    found = arguments[index] if index < len(arguments) else None
    return found if isinstance(found, (bool, int, float)) or found is None else 1.0
