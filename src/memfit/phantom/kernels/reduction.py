"""Sums, means, extremes, norms: everything that makes few numbers of many.

A sum with few outputs and many inputs for each is divided among blocks of threads, which leave their partial sums in global memory.
How many there are follows from shapes, strides and the GPU (ATen/native/cuda/Reduce.cuh). The sum that makes the gradient of a bias
takes tens of MiB in this way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.phantom.kernels.rule import Arguments, ResultPlace, Rule, TakenBlocks, bytes_of
from memfit.phantom.target import Target

MAX_THREADS = 512
WARP = 32
THREADS_PER_SM = 2048
FEWEST_VALUES, MOST_VALUES = 16, 256
"""How many values a thread should add up."""


def staging_blocks(target: Target, x: torch.Tensor, dims: Sequence[int] | None, item: int = 4) -> tuple[int, ...]:
    """The sizes of the partial sums and of the counters beside them; empty where one block of threads is enough for an output.

    ``dims`` are the dimensions that are reduced; all of them where it is empty or ``None``. A partial result has ``item`` bytes.
    """
    if x.numel() == 0:
        return ()
    reduced = {dim % x.dim() for dim in dims} if dims else set(range(x.dim()))
    num_outputs = math.prod(x.shape[dim] for dim in range(x.dim()) if dim not in reduced)
    plan = plan_reduction(x, reduced, num_outputs, target.gpu.num_sms)
    if plan.blocks_per_output <= 1:
        return ()
    size = item * num_outputs * plan.blocks_per_output
    if not plan.reduces_fastest:
        size *= plan.width * plan.vector
    return size, 4 * plan.grid


@dataclass(frozen=True)
class ReductionPlan:
    """How a reduction is laid out on the GPU."""

    reduces_fastest: bool
    """Whether neighbours in memory belong to the same output."""
    vector: int
    """Outputs that a thread works on at once."""
    width: int
    height: int
    grid: int
    blocks_per_output: int


def plan_reduction(x: torch.Tensor, reduced: set[int], num_outputs: int, num_sms: int) -> ReductionPlan:
    inputs = x.numel() // num_outputs
    reduces_fastest = num_outputs == 1 or _fastest_dim(x) in reduced
    vector = 1 if reduces_fastest else _vector(num_outputs)
    threads = MAX_THREADS // vector
    across, along = (inputs, num_outputs) if reduces_fastest else (num_outputs // vector, inputs)
    if reduces_fastest and num_outputs == 1 and inputs > 128:
        across //= 4
    across, along = _last_power_of_two(min(across, threads)), _last_power_of_two(min(along, threads))
    width = min(across, WARP)
    height = min(along, threads // width)
    width = min(across, threads // height)
    step_in, step_out = (width, 1) if reduces_fastest else (1, width)
    splits_warps = -(-inputs // step_in) >= min(height * 16, MOST_VALUES)
    step_in, step_out = (step_in * height, step_out) if splits_warps else (step_in, step_out * height)
    grid = -(-(num_outputs // vector) // step_out)
    values = -(-inputs // step_in)
    wanted_grid = num_sms * (THREADS_PER_SM // (width * height))
    blocks = 1
    if splits_warps and values >= MOST_VALUES and grid <= wanted_grid:
        blocks = max(min(-(-wanted_grid // grid), -(-values // FEWEST_VALUES)), -(-values // MOST_VALUES))
    return ReductionPlan(reduces_fastest, vector, width, height, grid, blocks)


def _fastest_dim(x: torch.Tensor) -> int:
    return min((dim for dim in range(x.dim()) if x.shape[dim] > 1), key=x.stride, default=0)


def _vector(num_outputs: int) -> int:
    return next(vector for vector in (4, 2, 1) if num_outputs % vector == 0)


def _last_power_of_two(value: int) -> int:
    return 1 << (max(value, 1).bit_length() - 1)


# -- rules ---------------------------------------------------------------------------------------------------------------------


def _blocks(target: Target, args: Arguments, item: int, dims_at: int = 1) -> tuple[int, ...]:
    """For an operator whose argument number ``dims_at`` names the dimensions that are reduced."""
    dims = args[dims_at] if len(args) > dims_at else None
    dims = (dims,) if isinstance(dims, int) and not isinstance(dims, bool) else dims
    return staging_blocks(target, args[0], dims if isinstance(dims, (list, tuple)) else None, item)


def partial_bytes(x: torch.Tensor) -> int:
    """Of a partial sum: a float32, or a number of the input's type where that is wider."""
    return max(4, x.element_size())


def _sum_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Partial sums; integers and masks are copied to int64 first."""
    x = args[0]
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return _blocks(target, args, partial_bytes(x))
    copied = () if x.dtype == torch.int64 else (8 * x.numel(),)
    return (*copied, *_blocks(target, args, 8))


def _mean_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Partial results, in float32 where the type is narrower."""
    return _blocks(target, args, partial_bytes(args[0]))


def _norm_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Partial sums, in float32 where the type is narrower."""
    return _blocks(target, args, partial_bytes(args[0]), dims_at=2)


def _extreme_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Partial results in the type of the input."""
    return _blocks(target, args, args[0].element_size())


def _any_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Partial results of one byte."""
    return _blocks(target, args, 1)


def _pair_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Partial results of 16 bytes: a value and its index, or a mean, a sum of squares and a count."""
    return _blocks(target, args, 16)


def _count_nonzero_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """A mask, the mask as int64, and the partial sums of that."""
    return args[0].numel(), 8 * args[0].numel(), *staging_blocks(target, args[0], None, 8)


def _logsumexp_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """The maxima, and the exponentials of all elements."""
    return (bytes_of(result), bytes_of(args[0]))


def _cumsum_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """A copy of the input in the type of the result, where it has another."""
    return (bytes_of(result),) if args[0].dtype != result.dtype else ()


def _foreach_norm_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """For every tensor as many partial sums as the largest one has, before the norms."""
    largest = max((x.numel() for x in args[0]), default=0)
    return (4 * len(args[0]) * -(-largest // 65536), *map(ResultPlace, range(len(result))))


REDUCE = "ATen/native/cuda/Reduce.cuh; sizes measured"

RULES = (
    Rule(operators=("sum.dim_IntList", "sum"), takes=_sum_blocks, source=REDUCE),
    Rule(operators=("mean.dim", "mean", "prod.dim_int", "prod"), takes=_mean_blocks, source=REDUCE),
    Rule(operators=("linalg_vector_norm", "norm.Scalar", "norm.ScalarOpt_dim"), takes=_norm_blocks, source=REDUCE),
    Rule(operators=("amax", "amin", "max", "min"), takes=_extreme_blocks, source=REDUCE),
    Rule(operators=("any", "all"), takes=_any_blocks, source=REDUCE),
    Rule(
        operators=("argmax", "argmin", "var.correction", "std.correction", "var_mean.correction"),
        takes=_pair_blocks,
        source="ATen/native/cuda/Reduce.cuh",
    ),
    Rule(operators=("count_nonzero",), takes=_count_nonzero_blocks, source="ATen/native/TensorAdvancedIndexing.cpp"),
    Rule(operators=("logsumexp",), takes=_logsumexp_blocks, source="ATen/native/ReduceOps.cpp"),
    Rule(operators=("cumsum",), takes=_cumsum_blocks, source="ATen/native/ReduceOps.cpp"),
    Rule(operators=("_foreach_norm.Scalar",), takes=_foreach_norm_blocks, source="ATen/native/cuda/ForeachReduceOp.cu"),
)
