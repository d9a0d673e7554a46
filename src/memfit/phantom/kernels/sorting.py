"""The memory that sorting takes: sorts, and what is made of them.

cub sorts pairs by digits of eight bits. Each pass writes to the other of two buffers, and blocks of threads tell each other how
many of each digit they have seen. Sizes follow from counts and types (cub/device/dispatch/dispatch_radix_sort.cuh); they equal
those measured on an H200 to the byte (truth/kernel_memory.json in benchmarks), wherever two blocks or more share the work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from memfit.phantom.target import Target

DIGITS = 256
ITEMS_A_BLOCK = {1: 3584, 2: 5632, 4: 5376, 8: 4608}
"""How many pairs a block of threads takes, by the size of a key."""

FEW_ITEMS = 5376
"""Extra bytes where one block is enough."""


def pair_sort_bytes(count: int, key_size: int, value_size: int = 8) -> int:
    """What cub takes to sort so many keys with a value each."""
    if count <= 64:
        return 1
    both = _aligned(count * key_size) + _aligned(count * value_size)
    per_block = ITEMS_A_BLOCK[key_size]
    if count <= per_block:
        return both + FEW_ITEMS + 255
    if key_size == 1:
        both = 0  # one pass needs no second buffer
    counters = key_size * DIGITS * 8 + 256
    return both + counters + -(-count // per_block) * DIGITS * 4 + 255


def _aligned(size: int) -> int:
    return -(-size // 256) * 256


# -- sort ----------------------------------------------------------------------------------------------------------------------

SMALL_SORT = 4096
"""Rows up to this length are sorted in place, in one kernel."""
LONG_ROW, FEW_ROWS = 1_000_000, 128


def sort(target: Target, args: Any, result: Any) -> Sequence[int]:
    """ATen/native/cuda/Sort.cpp, SortStable.cu: the row numbers, then by the number of rows and their length."""
    x, length = args[0], _length(args[0], _dim(args))
    if x.numel() == 0 or length <= 1:
        return ()
    if length <= SMALL_SORT:
        return (8 * length,)
    count, rows, size = x.numel(), x.numel() // length, x.element_size()
    turned = (size * count, size * count, 8 * count) if x.stride(_dim(args)) != 1 else ()
    if rows == 1 or length >= LONG_ROW:
        return (*turned, 8 * count, pair_sort_bytes(length, size))
    if rows < FEW_ROWS:  # all rows in one go, then by row
        return (*turned, 8 * count, 8 * count, size * count, pair_sort_bytes(count, size))
    return (*turned, 8 * count, (size + 8) * count + 255)


def _dim(args: Any) -> int:
    """``sort(x, dim)`` or ``sort.stable(x, stable, dim)``."""
    given = [arg for arg in args[1:] if isinstance(arg, int) and not isinstance(arg, bool)]
    return given[0] if given else -1


def _length(x: torch.Tensor, dim: int) -> int:
    return x.shape[dim] if x.dim() else 1


# -- topk ----------------------------------------------------------------------------------------------------------------------

SHARED_ROWS = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
"""Up to so many rows, those of at least this length are shared among blocks of threads."""
SHORTEST_SHARED_ROW = 400
THREADS, BLOCKS_A_SM, FEWEST_ITEMS, MOST_ITEMS = 256, 6, 4, 64


def topk(target: Target, args: Any, result: Any) -> Sequence[int]:
    """ATen/native/cuda/TensorTopK.cu: where blocks share a row, each counts its digits."""
    x, length = args[0], _length(args[0], args[2] if len(args) > 2 else -1)
    rows = x.numel() // max(length, 1)
    if not rows or length < next((least for most, least in SHARED_ROWS if rows <= most), SHORTEST_SHARED_ROW):
        return ()
    items = -(-x.numel() // (target.gpu.num_sms * BLOCKS_A_SM * THREADS))
    blocks = rows * -(-length // (THREADS * min(max(items, FEWEST_ITEMS), MOST_ITEMS)))
    return (rows * x.element_size(), 8 * rows, 8 * rows, 2 * DIGITS * blocks, 4 * DIGITS * rows, 4 * blocks, 4 * blocks)


# -- sums by index -------------------------------------------------------------------------------------------------------------

SORTED_INDICES = 3072
"""Up to this many indices, gradients of embeddings are added up without sorting."""
ROWS_A_PART = 10
MAXIMUM = 2
"""The number of an embedding bag's mode."""


def embedding_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    """ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu: indices are sorted, and rows of one index added up in parts."""
    grad, indices, num_weights = args[:3]
    count, item = indices.numel(), indices.element_size()
    if count <= SORTED_INDICES:
        return ()
    segments = min(count, num_weights)
    parts = count // ROWS_A_PART + segments
    sorts = (item * count, item * count)  # sorted, and where each came from
    numbers = (item * count, item * segments, item * segments, item * parts)
    if _has_few_segments(target, segments, grad.shape[-1]):
        sums = 4 * num_weights * grad.shape[-1] if grad.element_size() < 4 else 0
        return (*sorts, *numbers, item * parts, sums)
    return (*sorts, *numbers, 4 * parts * grad.shape[-1])


def _has_few_segments(target: Target, segments: int, width: int) -> bool:
    """Since 2.11 few sums are made in one kernel; measured: 100 rows of 768 are few, 512 of 768 and 1000 of 64 are not."""
    return target.torch >= (2, 11) and segments <= 2 * target.gpu.num_sms


def embedding_bag_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    """Maxima know where they came from."""
    return () if args[8] == MAXIMUM else embedding_backward(target, (args[0], args[1], args[6]), result)


def index_put(target: Target, args: Any, result: Any) -> Sequence[int]:
    """ATen/native/cuda/Indexing.cu: sums by index sort the indices; the rest takes nothing."""
    if len(args) < 4 or not args[3]:
        return ()
    given = [index.shape for index in args[1] if index is not None]
    count = math.prod(torch.broadcast_shapes(*given)) if given else 0
    return (*[8 * count] * 4, pair_sort_bytes(count, 8)) if count else ()


# -- counting ------------------------------------------------------------------------------------------------------------------


def unique(target: Target, args: Any, result: Any) -> Sequence[int]:
    """ATen/native/cuda/Unique.cu: a sorted copy, which position each came from, and where runs begin."""
    count, size, wants_inverse = args[0].numel(), args[0].element_size(), len(args) > 2 and args[2]
    return (8 * count, 8 * count, pair_sort_bytes(count, size)) if wants_inverse else (pair_sort_bytes(count, size, value_size=0),)


NONZERO_BYTES = 21503
"""cub's count of what is set, for any length."""


def nonzero(target: Target, args: Any, result: Any) -> Sequence[int]:
    return (4, NONZERO_BYTES)


def randperm(target: Target, args: Any, result: Any) -> Sequence[int]:
    """ATen/native/cuda/Randperm.cu: random keys, as long as makes ties unlikely, sorted."""
    count = args[0]
    size = 4 if count < 2**16 else 8
    return (8 * count, size * count, size * count, pair_sort_bytes(count, size))
