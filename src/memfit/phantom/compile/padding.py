"""Whether Inductor pads the operands of a matrix product to aligned sizes.

Inductor times the product as it is and padded, and pads where that is clearly faster. Here both times are estimated:

::

    as it is     arithmetic, slower the less the rows of its matrices are aligned: kernels for tensor cores load 16 bytes at a time
    padded       arithmetic at full speed, and copies of the operands that the kernel before does not write padded anyway

Without tensor cores (float32 where TF32 is not allowed) alignment is worth nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from memfit.torch_compat.compiler import CompilerParts

ALIGNED_BYTES = 16
_SLOWER = {2: 3.0, 4: 1.6, 8: 1.2, 16: 1.0}
"""By alignment of its rows in bytes: how many times longer a product takes."""

_ACHIEVED = 0.7
"""Of the peak of tensor cores, by large products."""
_ACHIEVED_BY_COPIES = 0.75
"""Of the bandwidth, reading and writing."""
_TRANSPOSED = 2.0
"""How many times longer a copy takes that changes the order of the elements."""

_CLEARLY = 1.1
"""Inductor pads where the padded product takes less than the other one divided by this: ``is_padded_faster``."""


def should_pad(parts: CompilerParts) -> Callable[..., bool]:
    def decide(match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> bool:
        if parts.inductor_config.force_shape_pad:
            return True
        *batch, rows, inner = parts.sizes_for_planning(mat1.shape)
        columns = parts.sizes_for_planning(mat2.shape)[-1]
        if not parts.pad_mm.is_mm_compute_bound(rows, inner, columns, mat1.dtype) or not _uses_tensor_cores(mat1.dtype):
            return False
        tflops, gbps = parts.inductor_utils.get_device_tflops(mat1.dtype), parts.inductor_utils.get_gpu_dram_gbps()
        aligned_s = 2 * math.prod((*batch, rows, inner, columns)) / (tflops * 1e12 * _ACHIEVED)
        copies_s = sum(
            _copy_bytes(parts, matrix) / (gbps * 1e9 * _ACHIEVED_BY_COPIES)
            for name, matrix, sizes in (("mat1", mat1, (rows, inner)), ("mat2", mat2, (inner, columns)))
            if _is_unaligned(sizes, mat1.dtype) and not parts.pad_mm.should_exclude_padding_time(match, name)
        )
        alignment = min(_alignment(parts, mat1), _alignment(parts, mat2), _power_of_two(columns * mat1.dtype.itemsize))
        return bool(aligned_s * _SLOWER[max(alignment, 2)] > _CLEARLY * (aligned_s + copies_s))

    return decide


def _uses_tensor_cores(dtype: torch.dtype) -> bool:
    return dtype != torch.float32 or torch.backends.cuda.matmul.allow_tf32


def _is_unaligned(sizes: Sequence[int], dtype: torch.dtype) -> bool:
    return any(size != 1 and size * dtype.itemsize % ALIGNED_BYTES for size in sizes)


def _copy_bytes(parts: CompilerParts, matrix: Any) -> float:
    """Read and written, where the copy changes the order of the elements as if it were more."""
    count: int = math.prod(parts.sizes_for_planning(matrix.shape)) * matrix.dtype.itemsize
    return 2 * count * (1.0 if matrix.is_contiguous() else _TRANSPOSED)


def _alignment(parts: CompilerParts, matrix: Any) -> int:
    """To how many bytes each row of a matrix is aligned, or each column if it is stored by columns."""
    return _power_of_two(max(parts.sizes_for_planning(matrix.stride()[-2:])) * matrix.dtype.itemsize)


def _power_of_two(size_bytes: int) -> int:
    """The largest that divides it, up to 16."""
    return math.gcd(size_bytes, ALIGNED_BYTES)
