"""The workspaces that cuBLAS keeps: blocks of known sizes that no tensor shows and that stay.

Source: ATen/cuda/CublasHandlePool.cpp (``getChosenWorkspaceSize``) and ATen/cuda/CUDABlas.cpp of torch. A block of such a size is
taken for a workspace only if it has no role and outlives the step that it was born in.
"""

from __future__ import annotations

import os
import re

from memfit.units import KIB, MIB

_SMALL, _LARGE, _CUBLASLT = (4096 * 2 + 16 * 8) * KIB, 4096 * 8 * KIB, MIB


def workspace_sizes() -> frozenset[int]:
    """The sizes that such a block can have, in bytes."""
    chosen = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    pairs = re.findall(r":(\d+):(\d+)", chosen)
    own = {sum(int(size) * int(count) for size, count in pairs) * KIB} if pairs else {_SMALL, _LARGE}
    chosen_lt = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return frozenset(own | {int(chosen_lt) * KIB if chosen_lt.isdecimal() else _CUBLASLT})
