"""Seconds of a recurrent layer: a small product for each step of its sequence, one after the other, and large ones for all steps.

::

    forward     inputs x weights (all steps at once), then for each step: state x weights, and the cell
    backward    for each step: the cell, and gradient x weights; then the gradients of inputs, of weights and of biases

Layers and directions that do not wait for each other overlap on a GPU; here they follow one another, and nothing is added for the
pause between two kernels. Fitted to the recurrent layers of ``benchmarks/truth/convolution_times.json.gz`` (an H200, cuDNN 9.19).
"""

from __future__ import annotations

import math
from typing import Final

from memfit.timing.chips import MICRO, Chip
from memfit.timing.operators.calls import Argument, Call, Operand
from memfit.timing.operators.costs import Bound, Cost
from memfit.timing.operators.elementwise import H200_F32
from memfit.timing.operators.products import product_cost

STEP_SHARE: Final = {(True, False): 1.2, (True, True): 1.0, (False, False): 0.85, (False, True): 0.4}
"""Of the speed of a product with the same sizes, that of one step; by two bytes an element, and by backward."""

WHOLE_SHARE: Final = {True: 0.75, False: 0.5}
"""The same of products over all steps."""

CELL: Final = {True: (2.0, 70e9), False: (2.0, 40e9)}
"""Of the cell: microseconds, and units a second; by two bytes an element."""

SMALL_STATE: Final = (128, 1.9 * MICRO)
"""In float32 a state of so many units stays in a multiprocessor: seconds of a step, either way."""

BIAS_RATE: Final = {True: 265e9, False: 190e9}
"""Elements a second, where gradients of biases are added up."""


def price_recurrent(call: Call, chip: Chip, allow_tf32: bool) -> Cost:
    """``_cudnn_rnn`` and ``_cudnn_rnn_backward``."""
    given, is_backward = call.inputs[0], "backward" in call.name
    layers = _layers(call)
    steps, batch = _steps_and_batch(call, given, is_backward)
    dtype = "tf32" if given.dtype == "f32" and allow_tf32 else given.dtype
    is_half, speed = given.item_bytes == 2, chip.f32_flops / H200_F32
    seconds, flops = 0.0, 0.0

    def product(m: int, n: int, k: int) -> float:
        moved = given.item_bytes * (m * n + m * k + n * k)
        alignment = next(power for power in (8, 4, 2, 1) if n % power == 0 and k % power == 0) if is_half else 8
        return product_cost("", chip, dtype, 1, m, n, k, moved, alignment).seconds

    for rows, inputs, hidden in layers:
        start, rate = CELL[is_half]
        cell = start * MICRO + batch * hidden / (rate * speed)
        share = STEP_SHARE[is_half, is_backward]
        flops += 2.0 * steps * batch * rows * (inputs + hidden) * (2 if is_backward else 1)
        if hidden <= SMALL_STATE[0] and not is_half:
            seconds += steps * SMALL_STATE[1] / speed
        elif is_backward:
            seconds += steps * (cell + product(batch, hidden, rows) / share)
        else:
            seconds += steps * (cell + product(batch, rows, hidden) / share)
        if is_backward:
            whole = (
                product(steps * batch, inputs, rows) + product(rows, inputs, steps * batch) + product(rows, hidden, steps * batch)
            )
            seconds += whole / WHOLE_SHARE[is_half] + steps * batch * rows / (BIAS_RATE[is_half] * speed)
        else:
            seconds += product(steps * batch, rows, inputs) / WHOLE_SHARE[is_half]
    peak = chip.tf32_flops if dtype == "tf32" else chip.product_flops(dtype)
    return Cost(
        call.operator,
        max(seconds, flops / peak),
        Bound.ARITHMETIC,
        num_kernels=max(1, 2 * steps * len(layers)),
        flops=flops,
        moved_bytes=float(sum(tensor.touched_bytes for tensor in (*call.inputs, *call.outputs))),
        flops_type=dtype,
        assumption="the time of recurrent layers is a sum over their steps: what cuDNN overlaps or waits for is not known",
    )


def _layers(call: Call) -> list[tuple[int, int, int]]:
    """Rows of the weights, columns for inputs, and columns for the state, of every layer and direction: matrices come in pairs."""
    lists = [argument for argument in call.arguments if isinstance(argument, tuple)]
    matrices = [[tensor for tensor in each if isinstance(tensor, Operand) and len(tensor.shape) == 2] for each in lists]
    weights = max(matrices, key=lambda each: sum(tensor.numel for tensor in each), default=[])
    pairs = zip(weights[::2], weights[1::2], strict=False)
    return [(to_gates.shape[0], to_gates.shape[1], state.shape[1]) for to_gates, state in pairs]


def _steps_and_batch(call: Call, given: Operand, is_backward: bool) -> tuple[int, int]:
    """How long the sequence is, and how many there are; of sequences of different lengths, on average."""
    if len(given.shape) < 3:
        sizes = _argument(call, 18 if is_backward else 14)
        steps = len(sizes) if isinstance(sizes, tuple) and sizes else 1
        return steps, max(1, (given.shape[0] if given.shape else 1) // steps)
    first, second = given.shape[0], math.prod(given.shape[1:-1])
    is_batch_first = _argument(call, 14 if is_backward else 10) is True
    return (second, first) if is_batch_first else (first, second)


def _argument(call: Call, index: int) -> Argument:
    return call.arguments[index] if index < len(call.arguments) else None
