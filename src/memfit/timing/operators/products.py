"""Seconds of a matrix product: tiles, waves of them over the GPU's multiprocessors, and bytes.

::

    m x n of the result is cut into tiles; each multiprocessor works on one tile at a time, along all of k
    tiles / multiprocessors, rounded up, is the number of waves: a last wave that is half empty takes as long as a full one
    a product with few tiles and a long k is cut along k too, and the parts are added up

The library takes the tile that is the fastest for a shape, and so does this file, from the tiles of the rates.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from memfit.hardware import GIGA, Gpu
from memfit.timing.operators.calls import Bound, Call, Cost, Operand
from memfit.timing.rates import MICRO, ProductKernels, Rates, Splitting


def price_product(call: Call, chip: Gpu, rates: Rates, allow_tf32: bool, is_sustained: bool = True) -> Cost:
    """``mm``, ``bmm``, ``addmm``, ``baddbmm`` and the like: the last two matrices are multiplied."""
    matrices = [tensor for tensor in call.inputs if len(tensor.shape) >= 2 and not tensor.device_kind][:3]
    if call.name in ("addmm", "baddbmm", "addbmm") and len(matrices) == 3:
        matrices = matrices[1:]
    a, b = matrices[0], matrices[1]
    batch = math.prod(a.shape[:-2])
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    dtype = "tf32" if a.dtype == "f32" and allow_tf32 else a.dtype
    moved = a.size_bytes + b.size_bytes + sum(tensor.size_bytes for tensor in call.outputs)
    alignment = (
        min(_alignment(a), _alignment(b), *(_alignment(tensor) for tensor in call.outputs)) if dtype in ("bf16", "f16") else 8
    )
    return product_cost(call.operator, chip, rates, dtype, batch, m, n, k, moved, alignment, is_sustained)


GROUPED_ON = ("sm_9", "sm_10")
"""Architectures with one kernel for all groups."""


def price_grouped_product(call: Call, chip: Gpu, rates: Rates, allow_tf32: bool, is_sustained: bool = True) -> Cost:
    """``_grouped_mm``: one kernel for bfloat16 on GPUs that have it; elsewhere the host reads where groups end, and issues a
    product for each (``_grouped_mm_fallback`` in ATen/native/GroupedMMUtils.h)."""
    a, b = call.operand(0), call.operand(1)
    if a.dtype == "bf16" and chip.arch.startswith(GROUPED_ON):
        return price_product(call, chip, rates, allow_tf32, is_sustained)
    groups = next((tensor.shape[0] for tensor in call.inputs[2:] if len(tensor.shape) == 1), 0) or max(a.shape[0], 1)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if len(a.shape) == 2 and len(b.shape) == 2:
        k = math.ceil(k / groups)
    elif len(a.shape) == 2:
        m = math.ceil(m / groups)
    elif len(b.shape) == 2:
        n = math.ceil(n / groups)
    dtype = "tf32" if a.dtype == "f32" and allow_tf32 else a.dtype
    moved = a.size_bytes + b.size_bytes + sum(tensor.size_bytes for tensor in call.outputs)
    one = product_cost(call.operator, chip, rates, dtype, 1, m, n, k, moved / groups, is_sustained=is_sustained)
    # Without offsets all matrices are of one size, and there is nothing to read.
    return replace(
        one,
        seconds=one.seconds * groups,
        num_kernels=groups,
        flops=one.flops * groups,
        moved_bytes=moved,
        looks_first=len(call.inputs) > 2,
    )


def product_cost(
    operator: str,
    chip: Gpu,
    rates: Rates,
    dtype: str,
    batch: int,
    m: int,
    n: int,
    k: int,
    moved_bytes: float,
    alignment: int = 8,
    is_sustained: bool = True,
    share: float = 1.0,
) -> Cost:
    """Of ``batch`` products of ``m`` by ``k`` and ``k`` by ``n``. A ``share`` is for kernels that reach less along k than those of
    products do; what power leaves and memory are the same for them."""
    flops = 2.0 * batch * m * n * k
    own, peak = rates.products, chip.product_flops(dtype)
    has_tensor_cores = dtype in ("bf16", "f16", "f8", "tf32") and peak > chip.f32_flops
    kernels = own.tensor_cores if has_tensor_cores else own.plain
    if alignment < 8:
        share_left = own.misaligned[str(alignment)]
        kernels = replace(kernels, tiles=((128, 128, share_left), (64, 64, share_left * own.misaligned_small)))
    at_memory = moved_bytes / (chip.memory_bandwidth * kernels.memory_share)
    # Kernels for odd rows cut no batch along k.
    splitting = replace(own.splitting, most_parts=1) if alignment < 8 and batch > 1 else own.splitting
    at_arithmetic = _tiled_seconds(kernels, splitting, peak / chip.num_sms, chip.num_sms, batch, m, n, k) / share
    if has_tensor_cores or alignment < 8:
        at_arithmetic = max(at_arithmetic, flops / (peak * (own.sustained_share if is_sustained else own.power_share)))
    # Loading and multiplying overlap, but for the beginning and the end.
    seconds = kernels.start_us * MICRO + max(at_memory, at_arithmetic)
    bound = Bound.ARITHMETIC if at_arithmetic >= at_memory else Bound.MEMORY
    return Cost(operator, seconds, bound, flops=flops, moved_bytes=moved_bytes, flops_type=dtype)


@lru_cache(maxsize=4096)
def _tiled_seconds(
    kernels: ProductKernels, splitting: Splitting, sm_flops: float, num_sms: int, batch: int, m: int, n: int, k: int
) -> float:
    best, per_tile = math.inf, kernels.per_tile_us * MICRO
    smallest = min(rows * columns for rows, columns, _ in kernels.tiles)
    adding, added_bytes = splitting.start_us * MICRO, splitting.bandwidth * GIGA
    for rows, columns, share in kernels.tiles:
        for tall, wide in {(rows, columns), (columns, rows)}:
            tiles = batch * math.ceil(m / tall) * math.ceil(n / wide)
            at_once = max(1, kernels.at_once * smallest // (rows * columns)) if batch > 1 else 1
            per_k = 2.0 * rows * columns / (sm_flops * share)
            parts = 1
            while parts <= splitting.most_parts:
                waves = math.ceil(tiles * parts / num_sms)
                seconds = waves * math.ceil(k / parts) * per_k + math.ceil(waves / at_once) * per_tile
                # Parts are added up by a kernel of its own.
                best = min(best, seconds + (adding + parts * m * n * batch * 4 / added_bytes if parts > 1 else 0.0))
                if k / parts < splitting.shortest:
                    break
                parts *= 2
    return best


def _alignment(tensor: Operand) -> int:
    """The largest power of two, up to eight, that divides the step from one row (or column) to the next."""
    steps = tensor.stride[-2:] if tensor.stride is not None else (tensor.shape[-1], 1)
    step = max(steps)
    return next(size for size in (8, 4, 2, 1) if step % size == 0)
