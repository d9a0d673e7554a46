"""Seconds of a recurrent layer: a small product for each step of its sequence, one after the other, and large ones for all steps.

::

    forward     inputs x weights (all steps at once), then for each step: state x weights, and the cell
    backward    for each step: the cell, and gradient x weights; then the gradients of inputs, of weights and of biases

Layers and directions that do not wait for each other overlap on a GPU; here they follow one another, and nothing is added for the
pause between two kernels.
"""

from __future__ import annotations

import math

from memfit.hardware import GIGA, Gpu
from memfit.timing.operators.calls import Argument, Bound, Call, Cost, Operand
from memfit.timing.operators.products import product_cost
from memfit.timing.rates import MICRO, Rates


def price_recurrent(call: Call, chip: Gpu, rates: Rates, allow_tf32: bool) -> Cost:
    """``_cudnn_rnn`` and ``_cudnn_rnn_backward``."""
    given, is_backward, own = call.inputs[0], "backward" in call.name, rates.recurrent
    layers = _layers(call)
    steps, batch = _steps_and_batch(call, given, is_backward)
    dtype = "tf32" if given.dtype == "f32" and allow_tf32 else given.dtype
    is_half, speed = given.item_bytes == 2, chip.f32_flops / rates.f32_flops
    seconds, flops = 0.0, 0.0

    def product(m: int, n: int, k: int) -> float:
        moved = given.item_bytes * (m * n + m * k + n * k)
        alignment = next(power for power in (8, 4, 2, 1) if n % power == 0 and k % power == 0) if is_half else 8
        return product_cost("", chip, rates, dtype, 1, m, n, k, moved, alignment).seconds

    for rows, inputs, hidden in layers:
        cell = own.cell_us * MICRO + batch * hidden / (own.cell_rate[is_half] * GIGA * speed)
        share = own.step_share[is_half][is_backward]
        flops += 2.0 * steps * batch * rows * (inputs + hidden) * (2 if is_backward else 1)
        if hidden <= own.small_state and not is_half:
            seconds += steps * (own.small_state_us * MICRO) / speed
        elif is_backward:
            seconds += steps * (cell + product(batch, hidden, rows) / share)
        else:
            seconds += steps * (cell + product(batch, rows, hidden) / share)
        if is_backward:
            whole = (
                product(steps * batch, inputs, rows) + product(rows, inputs, steps * batch) + product(rows, hidden, steps * batch)
            )
            seconds += whole / own.whole_share[is_half] + steps * batch * rows / (own.bias_rate[is_half] * GIGA * speed)
        else:
            seconds += product(steps * batch, rows, inputs) / own.whole_share[is_half]
    peak = chip.product_flops(dtype)
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
