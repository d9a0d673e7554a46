"""Rows and elements whose places are numbers in a tensor: looked up, written, or added to what is there.

::

    looked up           a group of threads for each row whose bytes fill whole words of 16; otherwise element by element
    written, added to   element by element; additions of one place wait for each other (atomics)
    sorted and added    index_put with accumulate, the gradient of an embedding: equal indices are brought together first

How often an index repeats is not known: all are taken to be drawn at random.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from memfit.hardware import GIGA, Gpu
from memfit.timing.operators.calls import Bound, Call, Cost, Operand
from memfit.timing.operators.memory_bound import read_and_written
from memfit.timing.rates import MICRO, Rates

WORD: Final = 16
"""Bytes that a thread loads at once."""

_INDEX_TYPES: Final = ("i64", "i32", "bool", "u8")


def price_lookup(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """``embedding``, ``index_select``, ``index``, ``gather``: what is read again and again is read from memory once."""
    table, result, own = call.inputs[0], call.outputs[0], rates.indexing
    row = math.prod(table.shape[_indexed_dim(call) + 1 :]) * table.item_bytes
    count = result.size_bytes / max(1, row)
    moved = result.size_bytes + min(result.size_bytes, table.touched_bytes) + 8.0 * count
    by_rows = row >= WORD and row % WORD == 0 and table.stride is None
    each = count * own.lookup_row_ns / GIGA if by_rows else result.numel / (own.lookup_rate * GIGA)
    cost = _cost(call, chip, rates, own.start_us, moved, each, num_kernels=1)
    masks = [tensor for tensor in call.inputs[1:] if tensor.dtype in ("bool", "u8")]
    if not masks:
        return cost
    found = (own.mask_us * MICRO) + sum(mask.numel for mask in masks) / (own.mask_rate * GIGA) * rates.f32_flops / chip.f32_flops
    return replace(cost, seconds=cost.seconds + found, num_kernels=6)


def price_scattered(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """``index_add``, ``scatter``, ``scatter_add``, ``scatter_reduce``, ``index_copy`` and ``index_put``, in place or not."""
    table, own = call.inputs[0], rates.indexing
    name = call.name.removesuffix("_").removeprefix("_").removesuffix("_impl")
    if name == "index_put" and True in call.arguments[3:4]:
        return price_sorted(call, _values(call), chip, rates)
    values = _values(call)
    rate = own.written[name] * (own.of_half if values.item_bytes == 2 and "add" in name else 1.0)
    if values.shape[-1:] in ((), (1,)):
        rate = min(rate, own.scattered_rate)
    copied = 0.0 if call.name.endswith("_") else 2.0 * table.size_bytes
    moved = values.touched_bytes + 2.0 * min(values.size_bytes, table.size_bytes)
    seconds = copied / (chip.memory_bandwidth * own.memory_share)
    passes = own.passes.get(name, 1)
    cost = _cost(call, chip, rates, own.start_us * (1 + bool(copied)), moved * passes, passes * values.numel / (rate * GIGA))
    return replace(cost, seconds=cost.seconds + seconds, moved_bytes=moved * passes + copied)


def price_embedding_backward(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """The table is filled with zeros; indices are sorted, unless they are few; rows are added up, ten equal ones at a time."""
    gradient, indices, own = call.inputs[0], call.inputs[1], rates.embedding_backward
    count, width = indices.numel, gradient.shape[-1] if gradient.shape else 1
    filled = sum(tensor.size_bytes for tensor in call.outputs) / (chip.memory_bandwidth * own.filled_share)
    start = own.few_start_us * MICRO
    if count > own.few:
        start = own.start_us * MICRO + count * own.sorted_ns / GIGA
    rows = max(1, sum(tensor.numel for tensor in call.outputs) // max(1, width))
    distinct = rows * -math.expm1(-count / rows)
    groups = max(distinct, 0.5 * distinct + count / own.rows_of_group)
    added = groups * width / (own.elements * GIGA) * rates.f32_flops / chip.f32_flops
    return Cost(call.operator, start + filled + added, Bound.ARITHMETIC, num_kernels=5, moved_bytes=read_and_written(call))


def price_sorted(call: Call, values: Operand, chip: Gpu, rates: Rates) -> Cost:
    """Indices are sorted; equal ones are added one after the other."""
    table, own = call.inputs[0], rates.indexing
    width = max(1, table.numel // max(1, table.shape[0] if table.shape else 1))
    count = values.numel / width
    repeated = count / max(1.0, table.numel / width)
    copied = 0.0 if call.name.endswith("_") else 2.0 * table.size_bytes / (chip.memory_bandwidth * own.memory_share)
    each = count * own.sorted_ns / GIGA + values.numel / (own.sorted_rate * GIGA) + repeated * own.repeated_us * MICRO
    cost = _cost(call, chip, rates, own.sorting_us, 2.0 * values.touched_bytes, each, num_kernels=20)
    return replace(cost, seconds=cost.seconds + copied)


def _indexed_dim(call: Call) -> int:
    """The last dimension that is looked up in: what is behind it comes as it lies. The last of all where each element has a place
    of its own."""
    table, last = call.inputs[0], len(call.inputs[0].shape) - 1
    if call.name == "embedding":
        return 0
    if call.name.endswith("index"):
        given = call.arguments[1]
        places = [at for at, index in enumerate(given) if isinstance(index, Operand)] if isinstance(given, tuple) else [0]
        first = given[places[0]] if isinstance(given, tuple) and places else None
        wide = len(first.shape) if isinstance(first, Operand) and first.dtype in ("bool", "u8") else 1
        return (places[-1] if places else 0) + wide - 1
    dim = call.arguments[1]
    at = dim % max(1, len(table.shape)) if isinstance(dim, int) else 0
    index = next((tensor for tensor in call.inputs[1:] if tensor.dtype in _INDEX_TYPES), None)
    if call.name == "gather" and (index is None or index.stride is None or any(index.stride[at + 1 :])):
        return last
    return at


def _values(call: Call) -> Operand:
    """What is written or added: the last tensor that is no index, or as many elements as the index has."""
    given = call.inputs[1:]
    floats = [tensor for tensor in given if tensor.dtype not in _INDEX_TYPES]
    found = floats[-1] if floats else max(given, key=lambda tensor: tensor.numel, default=call.inputs[0])
    if call.name.startswith("scatter"):
        index = next((tensor for tensor in given if tensor.dtype in _INDEX_TYPES), found)
        return replace(found, shape=index.shape, stride=None, dtype=call.inputs[0].dtype)
    return found


def _cost(call: Call, chip: Gpu, rates: Rates, start_us: float, moved: float, arithmetic: float, num_kernels: int = 2) -> Cost:
    at_memory = moved / (chip.memory_bandwidth * rates.indexing.memory_share)
    at_arithmetic = arithmetic * rates.f32_flops / chip.f32_flops
    bound = Bound.MEMORY if at_memory >= at_arithmetic else Bound.ARITHMETIC
    seconds = start_us * MICRO + max(at_memory, at_arithmetic)
    return Cost(call.operator, seconds, bound, num_kernels=num_kernels, moved_bytes=moved)
