"""What attention kernels take while they run.

cuDNN's, measured on an H200 with cuDNN 9.19 (truth/kernel_memory.json in benchmarks); the others' follow from their sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from memfit.phantom.target import Target

_HALVES = (torch.float16, torch.bfloat16)

# -- cuDNN ---------------------------------------------------------------------------------------------------------------------

GRAPH_BYTES = 256


def cudnn(target: Target, args: Any, result: Any) -> Sequence[int]:
    return (GRAPH_BYTES,)


def cudnn_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    """The gradient of the query in float32, a sum for each of its rows, and those of grouped heads apart."""
    query = args[1]
    batch, heads, length, dim = query.shape
    accumulated, softmax_sums = 4 * batch * heads * length * dim, 4 * batch * heads * length
    key, value = args[2], args[3]
    expanded = sum(batch * heads * x.shape[2] * x.shape[3] * x.element_size() for x in (key, value) if x.shape[1] != heads)
    return (accumulated + softmax_sums + expanded + GRAPH_BYTES,)


# -- flash ---------------------------------------------------------------------------------------------------------------------

ENOUGH_OF_THE_GPU, GOOD_ENOUGH, MOST_SPLITS = 0.8, 0.85, 128
ROWS_A_BLOCK = 64


def flash(target: Target, args: Any, result: Any) -> Sequence[int]:
    """flash_api.cpp: keys are divided where queries alone leave the GPU idle, and the parts kept in float32."""
    query, key, dropout = args[0], args[1], args[3] if len(args) > 3 else 0.0
    batch, heads, length, dim = query.shape
    splits = 1 if dropout else _splits(batch * heads * -(-length // ROWS_A_BLOCK), 2 * target.gpu.num_sms, key.shape[2], dim)
    rows = 4 * splits * batch * heads * length
    return (rows, rows * _padded_dim(dim)) if splits > 1 else ()


def _splits(blocks: int, num_slots: int, keys: int, dim: int) -> int:
    """The fewest that keep the GPU about as busy as any number would."""
    if blocks >= ENOUGH_OF_THE_GPU * num_slots:
        return 1
    key_blocks = -(-keys // (256 if dim <= 64 else 128 if dim <= 128 else 64))
    splits = [n for n in range(1, min(MOST_SPLITS, num_slots, key_blocks) + 1) if _is_new_split(key_blocks, n)]
    busy = {n: blocks * n / num_slots / math.ceil(blocks * n / num_slots) for n in splits}
    return next(n for n in splits if busy[n] >= GOOD_ENOUGH * max(busy.values()))


def _is_new_split(key_blocks: int, splits: int) -> bool:
    return splits == 1 or -(-key_blocks // splits) != -(-key_blocks // (splits - 1))


def flash_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    """flash_api.cpp: a sum for every row, the gradient of the query in float32, those of grouped heads apart; copies of what
    does not lie batch, length, head, dimension."""
    grad, query, key, out = args[0], args[1], args[2], args[4]
    batch, heads, length, dim = query.shape
    padded_length = _round_up(length, 128)
    sizes = [x.numel() * x.element_size() for x in (grad, out) if not x.transpose(1, 2).is_contiguous()]
    sizes += [4 * batch * heads * padded_length, 4 * batch * heads * padded_length * _padded_dim(dim)]
    if key.shape[1] != heads:
        sizes += [batch * key.shape[2] * heads * dim * query.element_size()] * 2
    return sizes


def _padded_dim(dim: int) -> int:
    return _round_up(dim, 32 if dim <= 128 else 64)


# -- memory-efficient ----------------------------------------------------------------------------------------------------------

LARGEST_IN_REGISTERS = 128


def efficient(target: Target, args: Any, result: Any) -> Sequence[int]:
    """kernel_forward.h: wide outputs of half types are added up in float32 in memory."""
    query, value = args[0], args[2]
    if query.dtype not in _HALVES or value.shape[-1] <= LARGEST_IN_REGISTERS:
        return ()
    batch, heads, length, _ = query.shape
    return (4 * batch * heads * length * value.shape[-1],)


def efficient_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    """kernel_backward.h: a sum for every row; tiles of the query's gradient, and of the others' where heads are wide."""
    query, key, out = args[1], args[2], args[5]
    batch, heads, length, dim = query.shape
    rows, columns = _tile(query.dtype, dim)
    floats = -(-length // rows) * -(-dim // columns) * (rows * columns + 4)
    if dim > LARGEST_IN_REGISTERS and query.dtype in _HALVES:
        splits = max(1, min(-(-key.shape[2] // columns), 200 // (batch * heads)))
        floats += 2 * splits * columns * _round_up(dim, rows)
    sums, tiles = 4 * batch * heads * length, 4 * batch * heads * _round_up(floats, 4)
    # In float32 the sums are those of a product that is gone before the tiles come.
    return sums, max(tiles, 4 * out.numel() + sums) if query.dtype == torch.float32 else tiles


def _tile(dtype: torch.dtype, dim: int) -> tuple[int, int]:
    if dim <= 64:
        return 64, 64
    if dim <= 128:
        return (128, 64) if dtype == torch.float32 else (128, 128)
    return 128, 64


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
