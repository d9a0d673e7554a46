"""Other operators that memory bounds: reductions, norms, softmax, losses, embeddings, optimizers.

Most have a row in the rates: which bytes move, what was reached of the memory's bandwidth, the microseconds that a call takes
however small it is, and the elements a second where arithmetic is the limit. Where kernels depend on more, a formula is below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from memfit.hardware import GIGA, Gpu
from memfit.timing.operators.calls import Bound, Call, Cost, Operand
from memfit.timing.rates import MICRO, Moved, Rates, Row


def read_and_written(call: Call) -> float:
    """Bytes of all inputs and outputs."""
    return float(sum(tensor.touched_bytes for tensor in (*call.inputs, *call.outputs)))


def written(call: Call) -> float:
    """Bytes of all outputs."""
    return float(sum(tensor.touched_bytes for tensor in call.outputs))


def _lists_and_first_again(call: Call) -> float:
    first = call.arguments[0] if call.arguments else ()
    back = sum(tensor.touched_bytes for tensor in first if isinstance(tensor, Operand)) if isinstance(first, tuple) else 0
    return float(sum(tensor.touched_bytes for tensor in call.inputs) + back)


def _list_sizes(call: Call) -> list[int]:
    lists = [argument for argument in call.arguments if isinstance(argument, tuple)]
    return [sum(tensor.touched_bytes for tensor in each if isinstance(tensor, Operand)) for each in lists]


def _first_twice_and_second(call: Call) -> float:
    sizes = _list_sizes(call)
    return float(2 * sizes[0] + (sizes[1] if len(sizes) > 1 else 0)) if sizes else 0.0


def _all_but_gradients_again(call: Call) -> float:
    sizes = _list_sizes(call)
    return float(2 * sum(sizes) - (sizes[1] if len(sizes) > 1 else 0))


_MOVED: Final[dict[Moved, Callable[[Call], float]]] = {
    Moved.ALL: read_and_written,
    Moved.WRITTEN: written,
    Moved.WRITTEN_TWICE: lambda call: 2.0 * written(call),
    Moved.LISTS: _lists_and_first_again,
    Moved.FIRST_TWICE: _first_twice_and_second,
    Moved.FUSED: _all_but_gradients_again,
}


def price_row(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """An operator that has a row."""
    row = rates.rows[call.name]
    count = max((tensor.numel for tensor in (*call.inputs, *call.outputs)), default=0)
    return row_cost(call, chip, rates, row, count, moved=_MOVED[row.moved](call))


def price_shards(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """FSDP2's copies between shards and whole tensors, at the pace of other copies of lists: all is read and written once.
    Gradients that are reduced in another type are copied no faster than types are changed.

    Of a tensor that is gathered into, only this GPU's part is written.
    """
    given = call.arguments[0] if isinstance(call.arguments[0], tuple) else call.arguments[:1]
    tensors = [tensor for tensor in given if isinstance(tensor, Operand)]
    read, count = float(sum(tensor.touched_bytes for tensor in tensors)), sum(tensor.numel for tensor in tensors)
    made = call.outputs[0] if call.outputs and call.name == "fsdp::chunk_cat" else tensors[0]
    casting = count / (rates.elementwise.casting[0] * GIGA) if made.dtype != tensors[0].dtype else 0.0
    moved = read + count * made.item_bytes
    return row_cost(call, chip, rates, rates.rows["_foreach_copy_"], moved=moved, arithmetic=casting)


def price_fill(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """Something is written everywhere, and nothing read."""
    return row_cost(call, chip, rates, rates.fill, moved=written(call))


def row_cost(
    call: Call,
    chip: Gpu,
    rates: Rates,
    row: Row,
    count: float = 0,
    *,
    moved: float | None = None,
    arithmetic: float = 0.0,
    start: float | None = None,
) -> Cost:
    """What a row says of ``moved`` bytes, by default all, and of ``count`` elements.

    ``arithmetic`` are further seconds of arithmetic on the GPU that was measured, ``start`` are seconds in place of the row's.
    """
    moved = read_and_written(call) if moved is None else moved
    at_memory = moved / (chip.memory_bandwidth * row.bandwidth / rates.memory_bandwidth)
    at_arithmetic = (arithmetic + count / (row.rate * GIGA)) * rates.f32_flops / chip.f32_flops
    bound = Bound.MEMORY if at_memory >= at_arithmetic else Bound.ARITHMETIC
    start = row.start_us * MICRO if start is None else start
    return Cost(call.operator, start + max(at_memory, at_arithmetic), bound, num_kernels=row.num_kernels, moved_bytes=moved)


# -- operators whose kernels depend on more than bytes -----------------------------------------------------------------------------


def price_reduction(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """``sum``, ``mean``, ``amax`` and the like: along the innermost dimension a row is one group's work; along outer ones, parts
    are added up in a second pass."""
    given, own = call.inputs[0], rates.reduction
    results = sum(tensor.numel for tensor in call.outputs)
    dims = _reduced_dims(call, given)
    if results <= 1:
        return row_cost(call, chip, rates, own.to_one, given.numel)
    if not given.shape or len(given.shape) - 1 in dims:
        rate = own.slow.get(call.name, own.of_bool if given.dtype == "bool" else own.inner.rate)
        per_result = own.inner_result_ns + own.inner_element_ns * min(own.short_row, given.numel / results)
        arithmetic = max(given.numel / rate, results * per_result) / GIGA
        return row_cost(call, chip, rates, own.inner, arithmetic=arithmetic)
    cost = row_cost(call, chip, rates, own.outer, results)
    if dims != tuple(range(len(dims))):
        return cost
    # Threads have a column each and walk down its rows, in parts where there are many.
    rows = given.numel / results
    walked = min(rows * own.walked_row_ns[0], own.many_rows_us * 1000 + rows * own.walked_row_ns[1])
    walked *= min(1.0, results / own.full_columns) ** 1.5 * rates.f32_flops / chip.f32_flops
    return replace(cost, seconds=cost.seconds + walked / GIGA, num_kernels=2)


def _reduced_dims(call: Call, given: Operand) -> tuple[int, ...]:
    given_dims = call.arguments[2:] if call.name in ("linalg_vector_norm", "norm") else call.arguments[1:]
    named = next((argument for argument in given_dims if isinstance(argument, (tuple, int)) and not isinstance(argument, bool)), ())
    dims = named if isinstance(named, tuple) else (named,)
    count = max(1, len(given.shape))
    return tuple(sorted(dim % count for dim in dims if isinstance(dim, int)))


def price_softmax(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """Short rows stay in registers; longer ones are read more than once."""
    given = call.inputs[0]
    is_short = (given.shape[-1] if given.shape else 1) <= rates.softmax.short_row
    rows = rates.softmax.short if is_short else rates.softmax.long
    return row_cost(call, chip, rates, rows[call.name.endswith("backward_data")], given.numel)


def price_weight_norm(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """A norm for each row, which is fast, or for each column, which is not."""
    given, dim = call.inputs[0], next((value for value in reversed(call.arguments) if isinstance(value, int)), 0)
    is_last = len(given.shape) > 1 and dim % len(given.shape) == len(given.shape) - 1
    own, columns = rates.weight_norm, given.shape[-1] if given.shape else 1
    waves = math.ceil(columns / own.columns_of_group / chip.num_sms)
    per_row = own.seconds_per_row[call.name.endswith("backward")]
    walked = given.numel / max(1, columns) * per_row * waves if is_last else 0.0
    return row_cost(call, chip, rates, own.row, arithmetic=walked)


def price_layer_norm(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """A group of threads for each row: narrow rows leave most of them without work. The gradients of weights are added up along all
    rows, a few columns at a time, and take as long for few columns as for many. What does not lie row by row is copied first."""
    given, own = call.inputs[0], rates.layer_norm
    normed = next((argument for argument in call.arguments if isinstance(argument, tuple)), given.shape[-1:])
    columns = math.prod(size for size in normed if isinstance(size, int))
    rows = given.numel / max(1, columns)
    is_backward = call.name.endswith("backward")
    copied = sum(
        tensor.numel / (rates.elementwise.strided[0] if tensor.stride[-1] == 1 else rates.elementwise.turned)
        for tensor in call.inputs[: 1 + is_backward]
        if tensor.stride is not None
    )
    copied *= rates.f32_flops / chip.f32_flops / GIGA
    row = own.backward if is_backward else own.forward
    per_row = own.backward_per_row_ns if is_backward else own.per_row_ns[given.item_bytes == 2]
    start = row.start_us * MICRO + copied
    if is_backward:
        is_split = rows > own.split_rows and columns < own.split_columns
        start += own.split_us * MICRO if is_split else own.adding_per_row_ns * rows / GIGA * rates.f32_flops / chip.f32_flops
    return row_cost(call, chip, rates, row, given.numel, arithmetic=rows * per_row / GIGA, start=start)


def price_loss(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """``nll_loss_forward``: one group reads a number from each row."""
    rows, own = call.inputs[0].shape[0] if call.inputs[0].shape else 1, rates.loss
    start = min(own.most_us, own.row.start_us + rows / own.rows_per_us) * MICRO
    return row_cost(call, chip, rates, own.row, moved=written(call), start=start)


def price_scan(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """``cumsum`` and the like: a group of threads for each row along the innermost dimension; along others one thread each, which
    takes step after step. A single row is cut into parts."""
    given, own = call.inputs[0], rates.scan
    dim = next((value for value in call.arguments[1:] if isinstance(value, int) and not isinstance(value, bool)), -1)
    shape = given.shape or (1,)
    length = shape[dim % len(shape)]
    rows = given.numel / max(1, length)
    slowdown = own.slow.get(call.name, 1.0)
    if rows <= 1:
        return row_cost(call, chip, rates, own.row, given.numel)
    if dim % len(shape) == len(shape) - 1:
        waves = math.ceil(rows / (own.rows_at_once * chip.num_sms))
        arithmetic = max(waves * math.ceil(length / own.step) * own.step_ns, given.numel / own.elements) / GIGA
        return row_cost(call, chip, rates, own.row, arithmetic=arithmetic * slowdown)
    inside = math.prod(shape[dim % len(shape) + 1 :])
    groups = rows / inside * math.ceil(inside / own.threads)
    step_ns = own.outer_step_ns + own.sharing_ns * groups / chip.num_sms
    return row_cost(call, chip, rates, own.row, arithmetic=length * step_ns / GIGA * slowdown)


def price_put_back(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """``slice_backward`` and the like: zeros everywhere, then the gradient in its place."""
    gradient, own = call.inputs[0], rates.put_back
    filled = written(call) / (chip.memory_bandwidth * own.filled_share)
    copied = max(
        2 * gradient.size_bytes / (chip.memory_bandwidth * own.copied_share),
        gradient.numel / (own.elements * GIGA) * rates.f32_flops / chip.f32_flops,
    )
    moved = written(call) + 2.0 * gradient.size_bytes
    return Cost(call.operator, own.start_us * MICRO + filled + copied, Bound.MEMORY, num_kernels=2, moved_bytes=moved)


def price_cat(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """As fast as memory where all parts are contiguous; otherwise every element's place is computed."""
    is_plain = all(tensor.stride is None for tensor in call.inputs) and len({tensor.dtype for tensor in call.inputs}) == 1
    return row_cost(call, chip, rates, rates.cat, 0 if is_plain else sum(tensor.numel for tensor in call.outputs))


def price_factor(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """A factor of a matrix, or what is solved by one: a column after the other, matrices of a batch side by side."""
    columns = max(
        (tensor.shape[-1] for tensor in call.inputs if len(tensor.shape) > 1 and tensor.shape[-1] == tensor.shape[-2]), default=1
    )
    own, moved = rates.factors, read_and_written(call)
    walked = columns * own.column_us[call.name] * MICRO * rates.f32_flops / chip.f32_flops
    seconds = own.start_us * MICRO + max(walked, moved / chip.memory_bandwidth)
    return Cost(call.operator, seconds, Bound.ARITHMETIC, num_kernels=8, moved_bytes=moved)
