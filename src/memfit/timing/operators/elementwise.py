"""Operators that do the same to every element, as torch's TensorIterator runs them.

::

    vectorized   all tensors lie alike and have one type: as fast as memory
    casting      they lie alike, but a type must be changed on the way: fewer elements a second
    strided      they lie differently, or one is broadcast: every element's place is computed first
"""

from __future__ import annotations

from typing import Final

from memfit.hardware import GIGA, Gpu
from memfit.timing.operators.calls import Bound, Call, Cost, Operand
from memfit.timing.rates import MICRO, ElementwiseRates, Rates

_COPIES: Final = ("_to_copy", "copy_", "clone", "contiguous", "to")
_FLOATS: Final = ("f64", "f32", "f16", "bf16", "f8")
_OF_ANY_TYPE: Final = (*_COPIES, "add", "sub", "mul", "div")
"""Operators that change the type of integers and of bool on the way; others are made for them, such as comparisons."""


def is_covered(name: str, rates: Rates) -> bool:
    """Whether an operator is known to go once over every element; the price of any other is a guess."""
    own = rates.elementwise
    return name in own.slow or name in own.one_pass or name.removeprefix("_foreach_").removesuffix("_") in own.one_pass


def price_elementwise(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """Any operator that reads and writes every element once."""
    given = call.inputs[1:] if call.name == "copy_" else call.inputs  # what is copied into is not read
    tensors = [tensor for tensor in given if tensor.shape] if len(given) > 1 else list(given)
    outputs = list(call.outputs)
    moved = sum(tensor.touched_bytes for tensor in (*tensors, *outputs))
    count = max((tensor.numel for tensor in (*tensors, *outputs)), default=0)
    is_computed, rate = _rate(call, tensors, outputs, rates.elementwise)
    rate *= GIGA
    at_memory = moved / (chip.memory_bandwidth * rates.elementwise.memory_share)
    at_arithmetic = count / (rate * chip.f32_flops / rates.f32_flops) if rate else 0.0
    bound = Bound.MEMORY if at_memory >= at_arithmetic else Bound.ARITHMETIC
    start = rates.elementwise.computed_start_us if is_computed else rates.elementwise.start_us
    return Cost(call.operator, start * MICRO + max(at_memory, at_arithmetic), bound, moved_bytes=moved)


def _rate(call: Call, inputs: list[Operand], outputs: list[Operand], rates: ElementwiseRates) -> tuple[bool, float]:
    """Whether types or places have to be computed; billions of elements a second, 0 where memory is the only limit."""
    found = [rates.slow[call.name]] if call.name in rates.slow else []
    has_scalar_on_gpu = any(not tensor.shape and not tensor.device_kind for tensor in call.inputs) and bool(inputs)
    is_strided = not _lie_alike(inputs, outputs) or (has_scalar_on_gpu and len(call.inputs) > 1)
    casts = not is_strided and _casts(call, inputs, outputs)
    if is_strided:
        found.append(_strided_rate(inputs, outputs, rates))
    elif casts:
        found.append(rates.casting[len(inputs) > 1])
    return is_strided or casts, min(found, default=0.0)


def _strided_rate(inputs: list[Operand], outputs: list[Operand], rates: ElementwiseRates) -> float:
    if not outputs or not outputs[0].shape:
        return rates.strided[len(inputs) > 1]
    result = outputs[0]
    whole = [tensor for tensor in inputs if tensor.shape == result.shape]
    if any(_is_turned(tensor, result) for tensor in whole):
        return rates.turned
    is_half = result.item_bytes <= 2
    if len(inputs) == 1 and inputs[0].stride is not None and 0 in inputs[0].stride:
        return rates.repeated[is_half]
    if len(inputs) > 1 and len(whole) < len(inputs) and _lie_alike(whole, outputs):
        return rates.broadcast[is_half]
    return rates.strided[len(inputs) > 1]


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
    of_any = call.name.removesuffix("_") in _OF_ANY_TYPE
    kinds = {tensor.dtype for tensor in (*inputs, *outputs) if of_any or tensor.dtype in _FLOATS}
    if len(kinds) < 2:
        return False
    # A copy from float32 to a half type has a kernel of its own.
    narrows = call.name in _COPIES and inputs[0].dtype == "f32" and outputs and outputs[0].dtype in ("bf16", "f16")
    return not narrows
