"""Seconds of attention, by the kernel that runs it: blocks of queries over the multiprocessors, each along all of its keys."""

from __future__ import annotations

import math
from functools import cache
from typing import Final

from memfit.data import FOLDER, read_toml
from memfit.hardware import Gpu
from memfit.timing.operators.calls import Argument, Bound, Call, Cost, Operand
from memfit.timing.rates import MICRO, AttentionKernel, Rates

BACKWARD_FLOPS: Final = 2.5
"""Five products where forward has two."""


@cache
def deterministic_slowdown(kernel: str) -> float:
    """Of backward passes that add up in one order; of ``flash``, ``flash3`` and ``cudnn``."""
    return float(read_toml(FOLDER / "deterministic.toml")[kernel])


def attention_call(
    kernel: str, query: Operand, key: Operand, value: Operand, *, is_causal: bool, dropout: float = 0.0, is_backward: bool = False
) -> Call:
    """Torch's operator for ``kernel`` (``flash``, ``cudnn``), for kernels of other libraries that do the same. Tensors have batch,
    heads, length and dimension."""
    name = f"_scaled_dot_product_{kernel}_attention"
    out = Operand(query.dtype, (*query.shape[:-1], value.shape[-1]))
    if not is_backward:
        options: tuple[Argument, ...] = (dropout, is_causal) if kernel == "flash" else (None, True, dropout, is_causal)
        return Call(name, (query, key, value, *options), (out,))
    sums = Operand("f32", query.shape[:-1])
    between = (None, None, 0, 0) if kernel == "flash" else (None, None, None, None, None, 0, 0)
    return Call(f"{name}_backward", (out, query, key, value, out, sums, *between, dropout, is_causal), (query, key, value))


def price_attention(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """``_scaled_dot_product_{flash,efficient,cudnn}_attention`` and their backward."""
    is_backward, own = call.name.endswith("_backward"), rates.attention
    heads = [tensor for tensor in call.inputs if len(tensor.shape) == 4]
    query, key, value = heads[1:4] if is_backward else heads[:3]
    batch, num_heads, queries, width = query.shape
    keys = key.shape[2]
    flops = 2.0 * batch * num_heads * queries * keys * (width + value.shape[3]) * (BACKWARD_FLOPS if is_backward else 1.0)
    is_causal, has_mask, dropout = _options(call, is_backward)
    kernel = own.kernels[_kernel(call.name, query.dtype)]
    peak = chip.product_flops(query.dtype)
    share = at_width(kernel, is_backward, width)

    block = own.block_f32 if query.dtype in ("f32", "f64") else own.block
    blocks_of_keys = math.ceil(keys / block)
    along = float(blocks_of_keys)
    if is_causal:
        along = min(along, (blocks_of_keys + 1) / 2 + width / own.causal_overhang)
    block_flops = 2.0 * block * block * (width + value.shape[3]) * (BACKWARD_FLOPS if is_backward else 1.0)
    per_block = along * block_flops * chip.num_sms / (peak * share) + own.per_block_us[is_backward] * MICRO
    waves = max(1.0, batch * num_heads * math.ceil(queries / block) / chip.num_sms)
    seconds = waves * per_block
    if has_mask and "efficient" in call.name:
        seconds *= own.masked[is_backward]
    if dropout:
        seconds *= own.dropped[is_backward]
    moved = sum(tensor.size_bytes for tensor in (*call.inputs, *call.outputs))
    # Backward begins and ends with kernels of its own over all of its tensors.
    at_memory, start = moved / (chip.memory_bandwidth * own.memory_share), own.start_us[is_backward] * MICRO
    seconds = max(seconds, at_memory) + (at_memory + start if is_backward else start)
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


def _kernel(name: str, dtype: str) -> str:
    if "cudnn" in name:
        return "cudnn"
    if "efficient" in name:
        return "efficient_f32" if dtype in ("f32", "f64") else "efficient"
    return "flash"


def at_width(kernel: AttentionKernel, is_backward: bool, width: int) -> float:
    """The share of the peak that heads of this size reach: between the sizes that were measured, and in proportion below them."""
    shares = kernel.backward if is_backward else kernel.forward
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
