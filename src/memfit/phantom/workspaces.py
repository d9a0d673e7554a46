"""Memory that kernels take and no operator shows: one row a rule, each with the source of its fact.

A rule gives the bytes that an operator takes from the allocator for as long as it runs. cuBLAS is apart: it keeps what it took,
once for every pair of a host thread and a stream.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.phantom.reductions import staging_blocks
from memfit.phantom.streams import current_stream_number
from memfit.phantom.target import Target
from memfit.phantom.torch_private import graph_task_id
from memfit.units import KIB, MIB

aten = torch.ops.aten

Sizes = Callable[[Target, Any, Any], Sequence[int]]
"""The sizes of the blocks, from the target, the operator's arguments and its result."""


@dataclass(frozen=True, kw_only=True)
class WorkspaceRule:
    """What some operators take while they run."""

    operators: tuple[Any, ...]
    sizes: Sizes
    source: str
    by_output: bool = False
    """Each output is made by a kernel of its own, with its own workspace: there is one size an output."""


# -- cuBLAS --------------------------------------------------------------------------------------------------------------------

MATRIX_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.addbmm.default)
CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)


def cublas_workspace(target: Target) -> int:
    """ATen/cuda/CublasHandlePool.cpp: a large one for the GPUs that profit from it."""
    major, minor = target.capability
    is_large = (major, minor) == (9, 0) or (target.torch >= (2, 12) and major in (9, 10, 12))
    return 4096 * 8 * KIB if is_large else (4096 * 2 + 16 * 8) * KIB


def cublaslt_workspace(target: Target) -> int:
    """ATen/cuda/CUDABlas.cpp: of its own, and kept, from 2.9 to 2.11; shared with cuBLAS since, a temporary before."""
    return MIB if (2, 9) <= target.torch <= (2, 11) else 0


_BACKWARD_THREAD = -1


class MatrixLibraries:
    """What cuBLAS and cuBLASLt have taken so far."""

    def __init__(self, target: Target) -> None:
        self._sizes = {"cublas": cublas_workspace(target), "cublaslt": cublaslt_workspace(target)}
        self._taken: set[tuple[str, int, int]] = set()

    def newly_taken(self, func: Any, args: Any) -> list[int]:
        """The bytes that this operator makes them take for good."""
        # On a GPU backward has a thread of its own; in the phantom world it runs on the caller's.
        thread = threading.get_ident() if graph_task_id() == -1 else _BACKWARD_THREAD
        # cuBLASLt asks for cuBLAS's handle, and with it for its workspace.
        keys = [(library, thread, current_stream_number()) for library in ("cublas", *["cublaslt"] * _has_bias(func, args))]
        fresh = [key for key in keys if key not in self._taken]
        self._taken.update(fresh)
        return [self._sizes[library] for library, _, _ in fresh if self._sizes[library]]


def _has_bias(func: Any, args: Any) -> bool:
    """cuBLASLt adds a bias on its way: ATen/native/cuda/Blas.cpp."""
    if func is not aten.addmm.default:
        return False
    bias, left, right = args[:3]
    return bool(bias.dim() == 1 and bias.is_contiguous() and left.dtype == bias.dtype and right.shape[0] > 1 and right.shape[1] > 1)


# -- while an operator runs ----------------------------------------------------------------------------------------------------


def _cudnn_attention(target: Target, args: Any, result: Any) -> Sequence[int]:
    return (_CUDNN_GRAPH_BYTES,)


def _cudnn_attention_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    query = args[1]
    batch, heads, length, dim = query.shape
    accumulated, softmax_sums = 4 * batch * heads * length * dim, 4 * batch * heads * length
    key, value = args[2], args[3]
    expanded = sum(batch * heads * x.shape[2] * x.shape[3] * x.element_size() for x in (key, value) if x.shape[1] != heads)
    return (accumulated + softmax_sums + expanded + _CUDNN_GRAPH_BYTES,)


_CUDNN_GRAPH_BYTES = 256


def _flash_attention_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    query, key = args[1], args[2]
    batch, heads, length, dim = query.shape
    padded_length = _round_up(length, 128)
    padded_dim = _round_up(dim, 32 if dim <= 128 else 64)
    sizes = [4 * batch * heads * padded_length, 4 * batch * heads * padded_length * padded_dim]
    if key.shape[1] != heads:  # grouped heads: gradients of key and value are made for every query head first
        sizes += [batch * key.shape[2] * heads * dim * query.element_size()] * 2
    return sizes


def _efficient_attention_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    query = args[1]
    batch, heads, length, dim = query.shape
    rows, columns = _efficient_tile(query.dtype, dim)
    per_head = -(-length // rows) * -(-dim // columns) * (rows * columns + 4)
    sizes = [4 * batch * heads * length, 4 * batch * heads * _round_up(per_head, 4)]
    return sizes if dim > columns else sizes[:1]


def _efficient_tile(dtype: torch.dtype, dim: int) -> tuple[int, int]:
    if dim <= 64:
        return 64, 64
    if dim <= 128:
        return (128, 64) if dtype == torch.float32 else (128, 128)
    return 128, 64


SORTED_INDICES = 3072
"""Up to this many indices, gradients of embeddings are added up without sorting."""


def _embedding_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    grad, indices, num_weights = args[:3]
    count = indices.numel()
    if count <= SORTED_INDICES:
        return ()
    segments = min(count, num_weights)
    partials = count // 10 + segments
    return (*[8 * count] * 7, 8 * partials, 4 * partials * grad.shape[-1])


def _reduction(dims_at: int) -> Sizes:
    """For an operator whose argument number ``dims_at`` names the dimensions that are summed away."""

    def sizes(target: Target, args: Any, result: Any) -> Sequence[int]:
        dims = args[dims_at] if len(args) > dims_at else None
        return staging_blocks(target, args[0], (dims,) if isinstance(dims, int) else dims)

    return sizes


def _convolution(target: Target, args: Any, result: Any) -> Sequence[int]:
    x, weight, stride = args[0], args[1], args[3]
    return (_relaid(x, weight, result, stride),)


def _convolution_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    grad, x, weight, stride = args[0], args[1], args[2], args[4]
    relaid = _relaid(x, weight, grad, stride)
    if _is_matrix_product(weight, stride):
        parts = 0 if relaid else min(_MATRIX_PARTS * _bytes(weight), _MOST_MATRIX_PARTS)
    else:
        parts = min(_KERNEL_PARTS * _bytes(weight), _MOST_KERNEL_PARTS)
    bias = staging_blocks(target, grad, (0, *range(2, grad.dim()))) if result[2] is not None else ()
    return relaid, relaid + parts, sum(bias)


_MATRIX_PARTS, _MOST_MATRIX_PARTS = 32, 32 * MIB
_KERNEL_PARTS, _MOST_KERNEL_PARTS = 14, 7 * MIB
"""The gradient of a weight is summed in so many parts, as long as they are small."""


def _relaid(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, stride: Any) -> int:
    """Bytes in which cuDNN lays out everything with channels last; none where they are, or where a matrix product will do."""
    if _is_channels_last(x):
        return 0
    if all(size == 1 for size in weight.shape[2:]):
        is_aligned = math.prod(x.shape[2:]) % 4 == 0
        return 0 if _is_matrix_product(weight, stride) and is_aligned else _bytes(x) + _bytes(out)
    return _bytes(x) + _bytes(weight) + _bytes(out)


def _is_matrix_product(weight: torch.Tensor, stride: Any) -> bool:
    return all(size == 1 for size in weight.shape[2:]) and all(step == 1 for step in stride)


def _is_channels_last(x: torch.Tensor) -> bool:
    return x.dim() == 4 and x.stride(1) == 1 and x.shape[1] > 1


def _bytes(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()


RULES = (
    WorkspaceRule(
        operators=(aten._scaled_dot_product_cudnn_attention.default,),
        sizes=_cudnn_attention,
        source="measured on an H200 with cuDNN 9.19: traces in benchmarks/truth",
    ),
    WorkspaceRule(
        operators=(aten._scaled_dot_product_cudnn_attention_backward.default,),
        sizes=_cudnn_attention_backward,
        source="measured, likewise: the gradient of the query in float32, and a sum for each of its rows",
    ),
    WorkspaceRule(
        operators=(aten._scaled_dot_product_flash_attention_backward.default,),
        sizes=_flash_attention_backward,
        source="ATen/native/transformers/cuda/flash_attn/flash_api.cpp",
    ),
    WorkspaceRule(
        operators=(aten._scaled_dot_product_efficient_attention_backward.default,),
        sizes=_efficient_attention_backward,
        source="ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h",
    ),
    WorkspaceRule(
        operators=(aten.embedding_dense_backward.default,),
        sizes=_embedding_backward,
        source="ATen/native/cuda/EmbeddingBackwardKernel.cu; sizes seen in traces in benchmarks/truth",
    ),
    WorkspaceRule(
        operators=(
            *(aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default),
            *(aten.amax.default, aten.amin.default, aten.prod.dim_int, aten.prod.default),
        ),
        sizes=_reduction(dims_at=1),
        source="ATen/native/cuda/Reduce.cuh: see reductions.py; sizes seen in traces in benchmarks/truth",
    ),
    WorkspaceRule(
        operators=(aten.linalg_vector_norm.default,), sizes=_reduction(dims_at=2), source="ATen/native/cuda/Reduce.cuh, likewise"
    ),
    WorkspaceRule(
        operators=(aten.convolution.default,),
        sizes=_convolution,
        source="measured on an H200 with cuDNN 9.19 (the ResNet trace in benchmarks/truth), within some percent",
    ),
    WorkspaceRule(
        operators=(aten.convolution_backward.default,),
        sizes=_convolution_backward,
        source="measured, likewise; the gradient of the bias is a sum: ATen/native/Convolution.cpp",
        by_output=True,
    ),
)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def rules_by_operator() -> dict[Any, WorkspaceRule]:
    return {operator: rule for rule in RULES for operator in rule.operators}
