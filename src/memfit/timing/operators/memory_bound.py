"""Other operators that memory bounds: reductions, norms, softmax, losses, embeddings, optimizers. Each has a row.

A row says which bytes move, and what an H200 reached of its memory's bandwidth, with the microseconds that a call takes however
small it is, and the elements a second where arithmetic is the limit. All of it is fitted to
``benchmarks/truth/operator_times.json``; ``benchmarks/timing/operators_on_gpu.py`` shows how well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from memfit.timing.chips import GIGA, MICRO, Chip
from memfit.timing.operators.calls import Call, Operand
from memfit.timing.operators.costs import Bound, Cost
from memfit.timing.operators.elementwise import H200_F32, TURNED

H200_BANDWIDTH: Final = 4800.0
"""Gigabytes a second: the rates below are of it."""

H200_SMS: Final = 132
"""Multiprocessors."""

Moved = Callable[[Call], float]


def read_and_written(call: Call) -> float:
    """Everything once."""
    return float(sum(tensor.touched_bytes for tensor in (*call.inputs, *call.outputs)))


def written(call: Call) -> float:
    return float(sum(tensor.touched_bytes for tensor in call.outputs))


def written_twice(call: Call) -> float:
    """What is looked up is as much as what comes out."""
    return 2.0 * written(call)


def lists_and_first_again(call: Call) -> float:
    """Lists of tensors, of which the first is written back."""
    first = call.arguments[0] if call.arguments else ()
    back = sum(tensor.touched_bytes for tensor in first if isinstance(tensor, Operand)) if isinstance(first, tuple) else 0
    return float(sum(tensor.touched_bytes for tensor in call.inputs) + back)


def first_twice_and_second(call: Call) -> float:
    """Optimizers multiply a gradient with itself, and it is read once."""
    lists = [argument for argument in call.arguments if isinstance(argument, tuple)]
    sizes = [sum(tensor.touched_bytes for tensor in each if isinstance(tensor, Operand)) for each in lists]
    return float(2 * sizes[0] + (sizes[1] if len(sizes) > 1 else 0)) if sizes else 0.0


def all_lists_but_gradients_again(call: Call) -> float:
    """Fused optimizers: parameters, gradients and states are read; all but the gradients are written back."""
    lists = [argument for argument in call.arguments if isinstance(argument, tuple)]
    sizes = [sum(tensor.touched_bytes for tensor in each if isinstance(tensor, Operand)) for each in lists]
    return float(2 * sum(sizes) - (sizes[1] if len(sizes) > 1 else 0))


@dataclass(frozen=True)
class Row:
    """What an operator costs."""

    start: float
    """Microseconds of a call that has nothing to do."""
    bandwidth: float
    """Gigabytes a second of what it moves."""
    rate: float = math.inf
    """Billions of elements a second."""
    moved: Moved = read_and_written
    num_kernels: int = 1


ROWS: Final[dict[str, Row]] = {
    # norms
    "_fused_rms_norm": Row(2, 3199, 767),
    "_fused_rms_norm_backward": Row(5, 1621, 214, num_kernels=2),
    "native_group_norm": Row(8, 1447, 214, num_kernels=3),
    "native_group_norm_backward": Row(20, 1900, 178, num_kernels=5),
    # softmax and losses
    "_safe_softmax": Row(8, 950, num_kernels=5),
    "_softmax_backward_data": Row(2, 2033, 308, num_kernels=2),
    "nll_loss_backward": Row(2, 4480, moved=written, num_kernels=2),
    "nll_loss2d_forward": Row(5, 2000),
    "mse_loss": Row(6, 2277, num_kernels=2),
    "mse_loss_backward": Row(1.5, 2277),
    "binary_cross_entropy_with_logits": Row(6, 655, num_kernels=8),
    # looking up
    "embedding": Row(2, 3900, moved=written_twice),
    "index": Row(2.5, 3900, moved=written_twice),
    "index_select": Row(2, 3900, moved=written_twice),
    "gather": Row(2, 3199, 532),
    "scatter": Row(4, 1447, 214, num_kernels=2),
    "scatter_": Row(4, 2600, 214),
    "scatter_add": Row(3, 2277, 257, num_kernels=2),
    "scatter_add_": Row(3, 2277, 257),
    "index_add": Row(3, 2033, 450, num_kernels=2),
    "index_add_": Row(3, 2033, 450),
    "index_copy_": Row(3, 2033, 450),
    "index_put": Row(35, 2856, 400, num_kernels=20),
    "index_put_": Row(35, 2856, 400, num_kernels=18),
    "_index_put_impl_": Row(35, 2856, 400, num_kernels=18),
    "masked_select": Row(25, 1500, num_kernels=6),
    "nonzero": Row(10, 821, num_kernels=5),
    "sort": Row(60, 584, 41, num_kernels=5),
    "argsort": Row(60, 584, 41, num_kernels=5),
    "topk": Row(20, 168, num_kernels=3),
    "searchsorted": Row(5, 1500),
    "bincount": Row(20, 1000, num_kernels=4),
    "_unique2": Row(60, 500, num_kernels=8),
    # filling and moving
    "constant_pad_nd": Row(2, 2277, 370, num_kernels=2),
    "stack": Row(2, 4012),
    # unfolding
    "im2col": Row(3, 1500),
    "col2im": Row(3, 1000),
    # optimizers
    "_foreach_add_": Row(4, 3650, moved=lists_and_first_again),
    "_foreach_sub_": Row(4, 3650, moved=lists_and_first_again),
    "_foreach_mul_": Row(4, 3650, moved=lists_and_first_again),
    "_foreach_div_": Row(4, 3650, moved=lists_and_first_again),
    "_foreach_lerp_": Row(4, 3800, moved=lists_and_first_again),
    "_foreach_addcmul_": Row(6, 3840, moved=first_twice_and_second),
    "_foreach_addcdiv_": Row(6, 3800, moved=lists_and_first_again),
    "_foreach_sqrt_": Row(4, 3650, moved=lists_and_first_again),
    "_foreach_copy_": Row(4, 3650, moved=read_and_written),
    "_foreach_zero_": Row(4, 4300, moved=read_and_written),
    "_foreach_sqrt": Row(4, 3400),
    "_foreach_mul": Row(4, 3650),
    "_foreach_add": Row(4, 3650),
    "_foreach_div": Row(4, 3650),
    "_foreach_neg": Row(4, 3650),
    "_foreach_norm": Row(7, 3199, num_kernels=2),
    "_foreach_maximum_": Row(4, 3650, moved=lists_and_first_again),
    "_fused_adam_": Row(16, 3560, moved=all_lists_but_gradients_again),
    "_fused_adamw_": Row(16, 3560, moved=all_lists_but_gradients_again),
    "_fused_sgd_": Row(6, 3400, moved=all_lists_but_gradients_again),
    "_fused_adagrad_": Row(8, 3400, moved=all_lists_but_gradients_again),
    "_amp_foreach_non_finite_check_and_unscale_": Row(5, 3650, moved=lists_and_first_again),
    "split_with_sizes_copy": Row(4, 1900),
    "chunk_cat": Row(6, 2500),
    "_chunk_cat": Row(6, 2500),
}


def price_row(call: Call, chip: Chip) -> Cost:
    """An operator that has a row."""
    row = ROWS[call.name]
    moved = row.moved(call)
    count = max((tensor.numel for tensor in (*call.inputs, *call.outputs)), default=0)
    return memory_cost(call, chip, row.start * MICRO, moved, row.bandwidth, count / (row.rate * GIGA), row.num_kernels)


def memory_cost(
    call: Call, chip: Chip, start: float, moved: float, h200_bandwidth: float, h200_arithmetic: float = 0.0, num_kernels: int = 1
) -> Cost:
    """From what an H200 reaches: gigabytes a second, and seconds of arithmetic."""
    at_memory = moved / (chip.memory_bandwidth * h200_bandwidth / H200_BANDWIDTH)
    at_arithmetic = h200_arithmetic * H200_F32 / chip.f32_flops
    bound = Bound.MEMORY if at_memory >= at_arithmetic else Bound.ARITHMETIC
    return Cost(call.operator, start + max(at_memory, at_arithmetic), bound, num_kernels=num_kernels, moved_bytes=moved)


# -- operators whose kernels depend on more than bytes -----------------------------------------------------------------------------


SLOW_REDUCTIONS: Final = {"var": 780, "var_mean": 780, "std": 780, "argmax": 900, "argmin": 900}
"""Billions of elements a second."""


def price_reduction(call: Call, chip: Chip) -> Cost:
    """``sum``, ``mean``, ``amax`` and their kin: along the innermost dimension a row is one group's work; along outer ones, parts
    are added up in a second pass."""
    given = call.inputs[0]
    moved, outputs = read_and_written(call), sum(tensor.numel for tensor in call.outputs)
    dims = _reduced_dims(call, given)
    if outputs <= 1:
        return memory_cost(call, chip, 5 * MICRO, moved, 4100, given.numel / (1700 * GIGA), num_kernels=2)
    if not given.shape or len(given.shape) - 1 in dims:
        rate = SLOW_REDUCTIONS.get(call.name, 200 if given.dtype == "bool" else 1700)
        arithmetic = max(given.numel / (rate * GIGA), outputs / (4.0 * GIGA))
        return memory_cost(call, chip, 3 * MICRO, moved, 4050, arithmetic)
    is_outer = dims == tuple(range(len(dims)))
    start = 12 * MICRO if is_outer and outputs < 2**20 else 4 * MICRO
    return memory_cost(call, chip, start, moved, 3600, outputs / (250 * GIGA), num_kernels=2 if is_outer else 1)


def _reduced_dims(call: Call, given: Operand) -> tuple[int, ...]:
    given_dims = call.arguments[2:] if call.name in ("linalg_vector_norm", "norm") else call.arguments[1:]
    named = next((argument for argument in given_dims if isinstance(argument, (tuple, int)) and not isinstance(argument, bool)), ())
    dims = named if isinstance(named, tuple) else (named,)
    count = max(1, len(given.shape))
    return tuple(sorted(dim % count for dim in dims if isinstance(dim, int)))


def price_softmax(call: Call, chip: Chip) -> Cost:
    """Rows of up to 1024 stay in registers; longer ones are read more than once."""
    moved, count = read_and_written(call), call.inputs[0].numel
    row = call.inputs[0].shape[-1] if call.inputs[0].shape else 1
    is_backward = call.name.endswith("backward_data")
    if row <= 1024:
        return memory_cost(call, chip, 2 * MICRO, moved, 3600, count / ((300 if is_backward else 430) * GIGA))
    return memory_cost(call, chip, 3 * MICRO, moved, 2920 if is_backward else 2520, count / ((500 if is_backward else 620) * GIGA))


WEIGHT_NORM_ROW: Final = {"_weight_norm_interface": 9.1e-9, "_weight_norm_interface_backward": 11e-9}
"""Seconds a row where the norms are of the last dimension: a group of threads has 16 columns and walks down all rows. 36,864 rows
of 128 take 334 and 404 microseconds."""


def price_weight_norm(call: Call, chip: Chip) -> Cost:
    """A norm for each row, which is fast, or for each column, which is not."""
    given, dim = call.inputs[0], next((value for value in reversed(call.arguments) if isinstance(value, int)), 0)
    is_last = len(given.shape) > 1 and dim % len(given.shape) == len(given.shape) - 1
    columns = given.shape[-1] if given.shape else 1
    waves = math.ceil(columns / 16 / chip.num_sms)
    walked = given.numel / max(1, columns) * WEIGHT_NORM_ROW[call.name] * waves if is_last else 0.0
    return memory_cost(call, chip, 3 * MICRO, read_and_written(call), 2550, walked)


SPLIT_ROWS: Final = 2**16
"""From more rows than this, of few columns, torch adds up the gradients of a layer norm's weights in parts."""


def price_layer_norm(call: Call, chip: Chip) -> Cost:
    """A group of threads for each row: narrow rows leave most of them without work. The gradients of weights are added up along all
    rows, a few columns at a time, and take as long for few columns as for many. ``convolution_times.json.gz`` has narrow rows. What
    does not lie row by row is copied first."""
    given = call.inputs[0]
    normed = next((argument for argument in call.arguments if isinstance(argument, tuple)), given.shape[-1:])
    columns = math.prod(size for size in normed if isinstance(size, int))
    rows = given.numel / max(1, columns)
    is_half, moved = given.item_bytes == 2, read_and_written(call)
    is_backward = call.name.endswith("backward")
    turned = sum(tensor.numel for tensor in call.inputs[: 1 + is_backward] if tensor.stride is not None)
    copied = turned / TURNED * H200_F32 / chip.f32_flops
    if not is_backward:
        arithmetic = rows * (0.98 if is_half else 1.44) / GIGA + given.numel / (680 * GIGA)
        return memory_cost(call, chip, 2.2 * MICRO + copied, moved, 2660, arithmetic)
    adding = 6 * MICRO if rows > SPLIT_ROWS and columns < 2048 else 3.0 * rows / GIGA * H200_F32 / chip.f32_flops
    arithmetic = rows * 0.95 / GIGA + given.numel / (1800 * GIGA)
    return memory_cost(call, chip, 3 * MICRO + copied + adding, moved, 1990, arithmetic, num_kernels=2)


def price_loss(call: Call, chip: Chip) -> Cost:
    """``nll_loss_forward``: one group reads a number from each row."""
    rows = call.inputs[0].shape[0] if call.inputs[0].shape else 1
    return memory_cost(call, chip, min(19.0, 2.0 + rows / 60) * MICRO, written(call), 4000)


def price_scan(call: Call, chip: Chip) -> Cost:
    """``cumsum`` along the last dimension: a row after the other."""
    given = call.inputs[0]
    rows = given.numel / max(1, given.shape[-1] if given.shape else 1)
    return memory_cost(call, chip, 5 * MICRO, read_and_written(call), 1250, max(given.numel / (160 * GIGA), rows / (0.17 * GIGA)))


def price_put_back(call: Call, chip: Chip) -> Cost:
    """``slice_backward`` and its kin: zeros everywhere, then the gradient in its place."""
    gradient = call.inputs[0]
    filled = written(call) / (chip.memory_bandwidth * 0.94)
    copied = max(
        2 * gradient.size_bytes / (chip.memory_bandwidth * 0.85), gradient.numel / (330 * GIGA) * H200_F32 / chip.f32_flops
    )
    moved = written(call) + 2.0 * gradient.size_bytes
    return Cost(call.operator, 3 * MICRO + filled + copied, Bound.MEMORY, num_kernels=2, moved_bytes=moved)


def price_embedding_backward(call: Call, chip: Chip) -> Cost:
    """The table is filled with zeros; indices are sorted, unless they are few; rows are added up, 50 billion elements a second."""
    gradient, indices = call.inputs[0], call.inputs[1]
    start = 35 * MICRO if indices.numel > 3072 else 8 * MICRO
    filled = written(call) / (chip.memory_bandwidth * 0.94)
    moved = read_and_written(call)
    added = gradient.numel / (50 * GIGA) * H200_F32 / chip.f32_flops
    return Cost(call.operator, start + filled + added, Bound.ARITHMETIC, num_kernels=5, moved_bytes=moved)


def price_cat(call: Call, chip: Chip) -> Cost:
    """As fast as memory where all parts are contiguous; otherwise every element's place is computed."""
    moved = read_and_written(call)
    is_plain = all(tensor.stride is None for tensor in call.inputs) and len({tensor.dtype for tensor in call.inputs}) == 1
    count = sum(tensor.numel for tensor in call.outputs)
    return memory_cost(call, chip, 2 * MICRO, moved, 3900, 0.0 if is_plain else count / (195 * GIGA))
