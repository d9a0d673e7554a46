"""What libraries take from the allocator once, and keep: cuBLAS and cuBLASLt for every pair of a host thread and a stream, cuDNN
the random generators of its dropout."""

from __future__ import annotations

import threading
from typing import Any

import torch

from memfit.phantom.device.streams import current_stream_number
from memfit.phantom.kernels.recurrent import dropout_state_bytes
from memfit.phantom.target import Target
from memfit.torch_compat.autograd import graph_task_id
from memfit.units import KIB, MIB

aten = torch.ops.aten

MATRIX_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.addbmm.default)
KEEPERS = frozenset((*MATRIX_PRODUCTS, aten._cudnn_rnn.default))
"""The operators for which a library may keep something."""

_BACKWARD_THREAD = -1
_ALL_THREADS = -2


def cublas_workspace(target: Target) -> int:
    """ATen/cuda/CublasHandlePool.cpp: a large one for the GPUs that profit from it."""
    major, minor = target.capability
    is_large = (major, minor) == (9, 0) or (target.torch >= (2, 12) and major in (9, 10, 12))
    return 4096 * 8 * KIB if is_large else (4096 * 2 + 16 * 8) * KIB


def cublaslt_workspace(target: Target) -> int:
    """ATen/cuda/CUDABlas.cpp: of its own, and kept, from 2.9 to 2.11; shared with cuBLAS since, a temporary before."""
    return MIB if (2, 9) <= target.torch <= (2, 11) else 0


class Libraries:
    """What they have taken so far."""

    def __init__(self, target: Target) -> None:
        self._sizes = {
            "cublas": cublas_workspace(target),
            "cublaslt": cublaslt_workspace(target),
            "cudnn dropout": dropout_state_bytes(target),
        }
        self._taken: set[tuple[str, int, int]] = set()

    def newly_taken(self, func: Any, args: Any) -> list[int]:
        """The bytes that this operator makes them take for good."""
        fresh = [key for key in self._needed(func, args) if key not in self._taken]
        self._taken.update(fresh)
        return [self._sizes[library] for library, _, _ in fresh if self._sizes[library]]

    def _needed(self, func: Any, args: Any) -> list[tuple[str, int, int]]:
        if func is aten._cudnn_rnn.default:
            dropout, train = args[11], args[12]
            return [("cudnn dropout", _ALL_THREADS, 0)] if dropout and train else []
        # On a GPU backward has a thread of its own; in the phantom world it runs on the caller's.
        thread = threading.get_ident() if graph_task_id() == -1 else _BACKWARD_THREAD
        # cuBLASLt asks for cuBLAS's handle, and with it for its workspace.
        return [(library, thread, current_stream_number()) for library in ("cublas", *["cublaslt"] * _has_bias(func, args))]


def _has_bias(func: Any, args: Any) -> bool:
    """cuBLASLt adds a bias on its way: ATen/native/cuda/Blas.cpp."""
    if func is not aten.addmm.default:
        return False
    bias, left, right = args[:3]
    return bool(bias.dim() == 1 and bias.is_contiguous() and left.dtype == bias.dtype and right.shape[0] > 1 and right.shape[1] > 1)
