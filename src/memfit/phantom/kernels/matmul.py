"""Matrix products: the operands that are copied first, and the workspaces that cuBLAS and cuBLASLt keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from memfit.errors import PredictionError
from memfit.phantom.kernels.rule import MEASURED, Arguments, Kept, Kernel, Rule, bytes_of
from memfit.phantom.target import Target
from memfit.torch_compat.devices import chosen_cublas_workspace, chosen_cublaslt_workspace
from memfit.torch_compat.tensors import is_traceable_wrapper_subclass, is_transforming
from memfit.units import KIB, MIB

aten = torch.ops.aten

BLOCKS_SINCE = (10, 0)
"""The compute capability that multiplies blocks of numbers with a scale for each."""

# -- what the libraries keep ---------------------------------------------------------------------------------------------------


def cublas_workspace(target: Target) -> int:
    """ATen/cuda/CublasHandlePool.cpp: what the environment says, or a large one for the GPUs that profit from it. What was measured
    on the card comes before that."""
    chosen = chosen_cublas_workspace()
    if chosen is not None:
        return chosen
    if target.gpu.cublas_workspace_bytes:
        return target.gpu.cublas_workspace_bytes
    major, minor = target.capability
    if target.is_rocm:
        return (128 if (major, minor) == (9, 4) else 32) * MIB
    is_large = (major, minor) == (9, 0) or (target.torch >= (2, 12) and major in (9, 10, 12))
    return 4096 * 8 * KIB if is_large else (4096 * 2 + 16 * 8) * KIB


def cublaslt_workspace(target: Target) -> int:
    """ATen/cuda/CUDABlas.cpp: a kept one of its own from 2.9 to 2.11; before that a temporary one, after it cuBLAS's."""
    if not (2, 9) <= target.torch <= (2, 11):
        return 0
    chosen = chosen_cublaslt_workspace()
    return MIB if chosen is None else chosen


CUBLAS = Kept(library="cuBLAS", size_bytes=cublas_workspace, is_per_thread_and_stream=True)
CUBLASLT = Kept(library="cuBLASLt", size_bytes=cublaslt_workspace, is_per_thread_and_stream=True)


def _cublas(args: Arguments) -> Sequence[Kept]:
    """cuBLAS's workspace, for each pair of a thread and a stream."""
    return (CUBLAS,)


def _cublas_or_cublaslt(args: Arguments) -> Sequence[Kept]:
    """cuBLAS's workspace, for each pair of a thread and a stream; cuBLASLt's beside it where a bias is added.

    cuBLASLt asks for cuBLAS's handle, and so for its workspace.
    """
    bias, left, right = args[:3]
    adds_bias = bias.dim() == 1 and bias.is_contiguous() and left.dtype == bias.dtype and right.shape[0] > 1 and right.shape[1] > 1
    return (CUBLAS, CUBLASLT) if adds_bias else (CUBLAS,)


def _cublas_of_linear(args: Arguments) -> Sequence[Kept]:
    """With a bias, cuBLASLt adds it."""
    return (CUBLAS, CUBLASLT) if len(args) > 2 and args[2] is not None else (CUBLAS,)


def _cublas_and_cublaslt(args: Arguments) -> Sequence[Kept]:
    """cuBLAS's and cuBLASLt's workspaces, for each pair of a thread and a stream."""
    return (CUBLAS, CUBLASLT)


# -- copies of operands --------------------------------------------------------------------------------------------------------


def _copies_of_two(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Copies of operands that cuBLAS cannot read where they are: with gaps both ways, or one number expanded to many rows."""
    return [bytes_of(x) for x in args[:2] if not _is_readable(x)]


def _copies_after_first(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Copies of the two factors, likewise; what is added to their product is the first argument."""
    return [bytes_of(x) for x in args[1:3] if not _is_readable(x)]


def _is_readable(x: torch.Tensor) -> bool:
    """Whether each row, or each column, lies in one piece and after the one before."""
    *_, rows, columns = x.shape
    *_, down, across = x.stride()
    if (across == 1 and down >= columns) or (down == 1 and across >= rows):
        return True
    if x.dim() == 2:
        return x.is_contiguous() or x.t().is_contiguous()
    return x.is_contiguous() and down != 0 and across != 0


# -- a product to which a bias is added ----------------------------------------------------------------------------------------


def _linear(target: Target) -> Kernel:
    """As torch composes it, but of an input in pieces, the bias is added to the product in place. Torch's own composition, which
    takes the tensors of a prediction for a subclass, would make a second tensor."""

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if bias is None:
            return torch.matmul(x, weight.t())
        if x.dim() == 2:
            return torch.addmm(bias, x, weight.t())
        *outer, width = x.shape
        if x.is_contiguous():
            product = torch.addmm(bias, x.reshape(math.prod(outer), width), weight.t())
            return product.view(*outer, weight.shape[0])
        product = torch.matmul(x, weight.t())
        return product + bias if is_traceable_wrapper_subclass(bias) or is_transforming() else product.add_(bias)

    return linear


# -- products in another type --------------------------------------------------------------------------------------------------


def _product_of_type(*args: Any, out: torch.Tensor | None = None, **options: Any) -> Any:
    """In the type that is asked for, which torch's shape function takes for a factor where something is added."""
    if out is not None:
        return out
    *_, left, right, dtype = args
    return left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=dtype)


# -- products of groups --------------------------------------------------------------------------------------------------------


def _scaled_mm(left: torch.Tensor, right: torch.Tensor, scale: torch.Tensor, *others: Any, **options: Any) -> Any:
    """As torch has it; products of blocks with a scale each (MXFP8, NVFP4) are refused where the GPU has none."""
    has_blocks = scale.dtype == torch.float8_e8m0fnu or left.dtype == torch.float4_e2m1fn_x2
    if has_blocks and torch.cuda.get_device_capability() < BLOCKS_SINCE:
        raise PredictionError(
            f"{torch.cuda.get_device_name()} has no products of MXFP8 and NVFP4, and torch refuses them on it: name a GPU with "
            "compute capability 10.0 or more, such as B200"
        )
    return NotImplemented


def _grouped_mm(left: torch.Tensor, right: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Other types than bfloat16, which CUDA multiplies one group after the other, and which torch's shape function refuses."""
    if left.dtype == torch.bfloat16:
        return NotImplemented
    shaped = aten._grouped_mm(left.bfloat16(), right.bfloat16(), *args, **kwargs)
    return shaped.new_empty(shaped.shape, dtype=left.dtype)


def _grouped_mm_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """A description of each group, and 512 bytes for each multiprocessor."""
    groups = args[1].shape[0] if args[1].dim() == 3 else args[2].shape[0] if len(args) > 2 and args[2] is not None else 1
    return (60 * groups, 512 * target.gpu.num_sms)


BLAS = "ATen/native/cuda/Blas.cpp; ATen/cuda/CublasHandlePool.cpp, CUDABlas.cpp"

RULES = (
    Rule(operators=("mm", "bmm"), takes=_copies_of_two, keeps=_cublas, source=BLAS),
    Rule(operators=("addmm",), takes=_copies_after_first, keeps=_cublas_or_cublaslt, source=BLAS),
    Rule(operators=("baddbmm",), takes=_copies_after_first, keeps=_cublas, source=BLAS),
    Rule(operators=("addbmm",), keeps=_cublas, source=BLAS),
    Rule(
        operators=("addmm.dtype", "addmm.dtype_out", "baddbmm.dtype", "baddbmm.dtype_out"),
        returns=_product_of_type,
        takes=_copies_after_first,
        keeps=_cublas,
        source=BLAS,
    ),
    # As nested tensors and subclasses call them, below autograd: not in the parts that they are made of.
    Rule(operators=("matmul",), keeps=_cublas, source=BLAS),
    Rule(operators=("linear",), runs=_linear, keeps=_cublas_of_linear, source=f"{BLAS}, ATen/native/Linear.cpp"),
    Rule(operators=("_scaled_mm",), returns=_scaled_mm, keeps=_cublas_and_cublaslt, source=f"{BLAS}, ScaledBlas.cpp"),
    Rule(
        operators=("_grouped_mm",),
        returns=_grouped_mm,
        takes=_grouped_mm_blocks,
        source=f"ATen/native/cuda/GroupedBlas.cpp; sizes {MEASURED}",
    ),
)
