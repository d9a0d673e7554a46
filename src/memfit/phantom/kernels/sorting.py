"""Sorts, and operators that sort: topk, unique, randperm, multinomial.

CUDA's library cub sorts pairs by one digit of eight bits after the other. Each pass writes to the other of two buffers, and blocks
of threads tell each other how many of each digit they have seen. Sizes follow from counts and types
(cub/device/dispatch/dispatch_radix_sort.cuh). Where two blocks or more share the work, they equal those measured on an H200 to the
byte (benchmarks/truth/kernel_memory.json).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memfit.phantom.kernels.rule import Arguments, Rule, bytes_of
from memfit.phantom.target import Target

DIGITS = 256
ITEMS_PER_BLOCK = {1: 3584, 2: 5632, 4: 5376, 8: 4608}
"""How many pairs a block of threads takes, by the size of a key."""

FEW_ITEMS = 5376
"""Extra bytes where one block is enough."""


def pair_sort_bytes(count: int, key_size: int, value_size: int = 8) -> int:
    """What cub takes to sort ``count`` pairs of a key and a value."""
    if count <= 64:
        return 1
    both = _aligned(count * key_size) + _aligned(count * value_size)
    per_block = ITEMS_PER_BLOCK[key_size]
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


def sort(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """The positions of the elements; for rows above 4096 elements also cub's memory, by the number of rows and their length."""
    x, length = args[0], _length(args[0], _dim(args))
    if x.numel() == 0 or length <= 1:
        return ()
    if length <= SMALL_SORT:
        return (8 * length,)
    count, rows, size = x.numel(), x.numel() // length, x.element_size()
    turned = (size * count, size * count, 8 * count) if x.stride(_dim(args)) != 1 else ()
    if rows == 1 or length >= LONG_ROW:
        return (*turned, 8 * count, pair_sort_bytes(length, size))
    if rows < FEW_ROWS:  # all rows are sorted as one, and the result by row number
        return (*turned, 8 * count, 8 * count, size * count, pair_sort_bytes(count, size))
    return (*turned, 8 * count, (size + 8) * count + 255)


def _dim(args: Arguments) -> int:
    """``sort(x, dim)`` or ``sort.stable(x, stable, dim)``."""
    given = [arg for arg in args[1:] if isinstance(arg, int) and not isinstance(arg, bool)]
    return given[0] if given else -1


def _length(x: torch.Tensor, dim: int) -> int:
    return x.shape[dim] if x.dim() else 1


# -- topk ----------------------------------------------------------------------------------------------------------------------

SHARED_ROWS = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
"""(most rows, least length): such rows are shared among blocks of threads."""
SHORTEST_SHARED_ROW = 400
THREADS, BLOCKS_PER_SM, FEWEST_ITEMS, MOST_ITEMS = 256, 6, 4, 64


def topk(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Where several blocks of threads share a row: what each has counted, by digit."""
    x, length = args[0], _length(args[0], args[2] if len(args) > 2 else -1)
    rows = x.numel() // max(length, 1)
    if not rows or length < next((least for most, least in SHARED_ROWS if rows <= most), SHORTEST_SHARED_ROW):
        return ()
    items = -(-x.numel() // (target.gpu.num_sms * BLOCKS_PER_SM * THREADS))
    blocks = rows * -(-length // (THREADS * min(max(items, FEWEST_ITEMS), MOST_ITEMS)))
    return (rows * x.element_size(), 8 * rows, 8 * rows, 2 * DIGITS * blocks, 4 * DIGITS * rows, 4 * blocks, 4 * blocks)


# -- unique, randperm, multinomial ---------------------------------------------------------------------------------------------


def unique(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """What it takes to sort; where the inverse is wanted, also the position that each element came from."""
    count, size, wants_inverse = args[0].numel(), args[0].element_size(), len(args) > 2 and args[2]
    return (8 * count, 8 * count, pair_sort_bytes(count, size)) if wants_inverse else (pair_sort_bytes(count, size, value_size=0),)


def randperm(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Random keys, wide enough to make equal ones unlikely, and what it takes to sort them."""
    count = args[0]
    size = 4 if count < 2**16 else 8
    return (8 * count, size * count, size * count, pair_sort_bytes(count, size))


def _multinomial(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """A random number for every weight; with replacement three copies, for a running sum of the weights."""
    return (bytes_of(args[0]),) * (3 if len(args) > 2 and args[2] else 1)


RULES = (
    Rule(
        operators=("sort", "sort.stable", "argsort", "argsort.stable"),
        takes=sort,
        source="ATen/native/cuda/Sort.cpp, SortStable.cu; sizes measured",
    ),
    Rule(operators=("topk",), takes=topk, source="ATen/native/cuda/TensorTopK.cu; sizes measured"),
    Rule(operators=("_unique2",), takes=unique, source="ATen/native/cuda/Unique.cu; sizes measured"),
    Rule(operators=("randperm",), takes=randperm, source="ATen/native/cuda/Randperm.cu; sizes measured"),
    Rule(operators=("multinomial",), takes=_multinomial, source="ATen/native/cuda/MultinomialKernel.cu"),
)
