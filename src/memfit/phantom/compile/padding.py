"""Whether Inductor pads the operands of a matrix product to aligned sizes.

Inductor pads where that was faster when it tried both. Without alignment to 16 bytes a product cannot use the fast kernels of GPUs
with tensor cores, so whatever is limited by arithmetic is padded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.torch_compat.compiler import CompilerParts

aten = torch.ops.aten


def should_pad(parts: CompilerParts) -> Callable[..., bool]:
    def decide(match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> bool:
        if parts.inductor_config.force_shape_pad:
            return True
        *_, rows, inner = parts.sizes_for_planning(mat1.shape)
        columns = parts.sizes_for_planning(mat2.shape)[-1]
        return bool(parts.pad_mm.is_mm_compute_bound(rows, inner, columns, mat1.dtype))

    return decide
