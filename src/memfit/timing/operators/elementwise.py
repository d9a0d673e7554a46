"""Operators that do the same to every element, as torch's TensorIterator runs them.

::

    vectorized   all tensors lie alike and have one type: as fast as memory
    casting      they lie alike, but a type must be changed on the way: so many elements a second
    strided      they lie differently, or one is broadcast: every element's place is computed first

The rates are of an H200 (families ``elementwise`` and ``layouts`` in ``benchmarks/truth/operator_times.json``).
"""

from __future__ import annotations

from typing import Final

from memfit.timing.chips import GIGA, MICRO, Chip
from memfit.timing.operators.calls import Call, Operand
from memfit.timing.operators.costs import Bound, Cost

H200_F32: Final = 66.9e12
"""Rates of elements follow the arithmetic that a GPU has: they were measured where it has this much."""

START: Final = 1.3 * MICRO
"""A kernel that has nothing to do takes 0.9 microseconds when its tensors are in the cache, and 1.3 when they are not."""

SHARE: Final = 0.915
"""Of the memory's bandwidth: 4.39 of 4.8 terabytes a second, over a gigabyte."""

CASTING: Final = {1: 345 * GIGA, 2: 262 * GIGA}
"""Elements a second, by the number of inputs: bfloat16 to float32; float32 times bfloat16."""

STRIDED: Final = {1: 310 * GIGA, 2: 270 * GIGA}
"""Transposed copies 277 to 345, rotary embeddings 259 to 285."""

BROADCAST: Final = {4: 306 * GIGA, 2: 390 * GIGA}
"""Where all that is not repeated lies alike, by the bytes of an element: a row or a column times a matrix."""

REPEATED: Final = {4: 400 * GIGA, 2: 480 * GIGA}
"""Where one tensor is read, and parts of it again and again: an expanded gradient."""

TURNED: Final = 145 * GIGA
"""Where neighbours in the result are not neighbours in what is read."""

SLOW: Final = {
    "gelu": 800 * GIGA,
    "gelu_backward": 590 * GIGA,
    "log": 785 * GIGA,
    "sqrt": 875 * GIGA,
    "cos": 814 * GIGA,
    "sin": 826 * GIGA,
    "silu": 956 * GIGA,
    "silu_backward": 666 * GIGA,
    "softplus": 505 * GIGA,
    "div": 640 * GIGA,
    "native_dropout": 590 * GIGA,
    "masked_fill": 247 * GIGA,
    "masked_fill_": 420 * GIGA,
    "erf": 800 * GIGA,
    "normal_": 440 * GIGA,
    "randn_like": 440 * GIGA,
    "uniform_": 600 * GIGA,
    "bernoulli_": 500 * GIGA,
    "roll": 205 * GIGA,
    "flip": 320 * GIGA,
    "tril": 420 * GIGA,
    "triu": 420 * GIGA,
}
"""Elements a second of functions whose arithmetic is the limit: seen with two bytes an element; with four, memory is."""

_COPIES: Final = ("_to_copy", "copy_", "clone", "contiguous", "to")
_FLOATS: Final = ("f64", "f32", "f16", "bf16", "f8")


def price_elementwise(call: Call, chip: Chip) -> Cost:
    """Any operator that reads and writes every element once."""
    given = call.inputs[1:] if call.name == "copy_" else call.inputs  # what is copied into is not read
    tensors = [tensor for tensor in given if tensor.shape] if len(given) > 1 else list(given)
    outputs = list(call.outputs)
    moved = sum(tensor.touched_bytes for tensor in (*tensors, *outputs))
    count = max((tensor.numel for tensor in (*tensors, *outputs)), default=0)
    rate = _rate(call, tensors, outputs)
    at_memory = moved / (chip.memory_bandwidth * SHARE)
    at_arithmetic = count / (rate * chip.f32_flops / H200_F32) if rate else 0.0
    bound = Bound.MEMORY if at_memory >= at_arithmetic else Bound.ARITHMETIC
    return Cost(call.operator, START + max(at_memory, at_arithmetic), bound, moved_bytes=moved)


def _rate(call: Call, inputs: list[Operand], outputs: list[Operand]) -> float:
    """Elements a second, 0 where memory is the only limit."""
    rates = [SLOW[call.name]] if call.name in SLOW else []
    num_inputs = min(2, max(1, len(inputs)))
    has_scalar_on_gpu = any(not tensor.shape and not tensor.place for tensor in call.inputs) and bool(inputs)
    if not _lie_alike(inputs, outputs) or (has_scalar_on_gpu and len(call.inputs) > 1):
        rates.append(_strided_rate(inputs, outputs, num_inputs))
    elif _casts(call, inputs, outputs):
        rates.append(CASTING[num_inputs])
    return min(rates, default=0.0)


def _strided_rate(inputs: list[Operand], outputs: list[Operand], num_inputs: int) -> float:
    if not outputs or not outputs[0].shape:
        return STRIDED[num_inputs]
    result = outputs[0]
    whole = [tensor for tensor in inputs if tensor.shape == result.shape]
    if any(_is_turned(tensor, result) for tensor in whole):
        return TURNED
    item = 4 if result.item_bytes > 2 else 2
    if len(inputs) == 1 and inputs[0].stride is not None and 0 in inputs[0].stride:
        return REPEATED[item]
    if len(inputs) > 1 and len(whole) < len(inputs) and _lie_alike(whole, outputs):
        return BROADCAST[item]
    return STRIDED[num_inputs]


def _is_turned(tensor: Operand, result: Operand) -> bool:
    """Is the result's innermost dimension not innermost in what is read? A dimension that is repeated is no matter."""
    if tensor.stride is None and result.stride is None:
        return False
    steps = result.stride or _contiguous(result.shape)
    of_input = tensor.stride or _contiguous(tensor.shape)
    inner = [at for at, (size, step) in enumerate(zip(result.shape, steps, strict=True)) if step == 1 and size > 1]
    return bool(inner) and of_input[inner[0]] > 1


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def _lie_alike(inputs: list[Operand], outputs: list[Operand]) -> bool:
    """Is every tensor dense, and in the same order as the others?"""
    tensors = (*inputs, *outputs)
    if not all(tensor.is_dense for tensor in tensors):
        return False
    return len({(_without_ones(tensor)) for tensor in tensors}) <= 1


def _without_ones(tensor: Operand) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Shape and order; dimensions of one element are of no matter."""
    if tensor.stride is None:
        return tuple(size for size in tensor.shape if size != 1), None
    kept = [(size, step) for size, step in zip(tensor.shape, tensor.stride, strict=True) if size != 1]
    shape = tuple(size for size, _ in kept)
    steps = tuple(step for _, step in kept)
    contiguous, expected = True, 1
    for size, step in reversed(kept):
        contiguous, expected = contiguous and step == expected, expected * size
    return shape, None if contiguous else steps


def _casts(call: Call, inputs: list[Operand], outputs: list[Operand]) -> bool:
    kinds = {tensor.dtype for tensor in (*inputs, *outputs) if tensor.dtype in _FLOATS}
    if len(kinds) < 2:
        return False
    # A copy from float32 to a half type has a kernel of its own.
    narrows = call.name in _COPIES and inputs[0].dtype == "f32" and outputs and outputs[0].dtype in ("bf16", "f16")
    return not narrows
