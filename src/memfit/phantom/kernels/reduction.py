"""The staging memory of CUDA's reductions.

A sum with few outputs and many inputs for each is divided among blocks of threads, which leave their partial sums in global memory.
How many there are follows from shapes, strides and the GPU (ATen/native/cuda/Reduce.cuh); the sum of a bias gradient takes tens of
MiB in this way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from memfit.phantom.target import Target

MAX_THREADS = 512
WARP = 32
THREADS_PER_SM = 2048
FEWEST_VALUES, MOST_VALUES = 16, 256
"""What a thread should have to add up."""


def staging_blocks(target: Target, x: torch.Tensor, dims: Sequence[int] | None, item: int = 4) -> tuple[int, ...]:
    """The sizes of the partial sums and of the counters beside them; empty where one block of threads is enough for an output.

    ``dims`` are summed away; all of them where it is empty or ``None``. A partial result takes ``item`` bytes.
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
