"""Memory that kernels take and no operator shows: one row a rule, each with the source of its fact.

A rule gives the bytes that an operator takes from the allocator for as long as it runs. What libraries keep is in ``libraries.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.phantom.kernels import attention_memory, convolution, recurrent, sorting
from memfit.phantom.kernels.reduction import staging_blocks
from memfit.phantom.target import Target

aten = torch.ops.aten

Sizes = Callable[[Target, Any, Any], Sequence[Any]]
"""The sizes of the blocks, from the target, the operator's arguments and its result."""


@dataclass(frozen=True, kw_only=True)
class WorkspaceRule:
    """What some operators take while they run."""

    operators: tuple[Any, ...]
    sizes: Sizes
    source: str
    by_output: bool = False
    """Each output is made by a kernel of its own, with its own workspace: there are sizes for each output."""
    assumption: str | None = None
    """What a prediction says that needed this rule, where sizes are not known for sure."""


MEASURED = "measured on an H200: benchmarks/truth/kernel_memory.json"
BY_CUDNN = f"{MEASURED}, cuDNN 9.19"
CONVOLUTIONS = "workspaces of convolutions were estimated from measurements on an H200: cuDNN's choice of kernels is its own"
RECURRENT = "workspaces of recurrent layers were interpolated between measurements on an H200"
REDUCTIONS = "ATen/native/cuda/Reduce.cuh: see reduction.py; sizes measured"


def _bytes(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()


# -- reductions ----------------------------------------------------------------------------------------------------------------


def _reduction(dims_at: int, item: int | None = None) -> Sizes:
    """For an operator whose argument number ``dims_at`` names the dimensions that are reduced away.

    ``item`` is what a partial result takes: a number of float32, or of the input's type if it is wider, where it is not given.
    """

    def sizes(target: Target, args: Any, result: Any) -> Sequence[int]:
        x, dims = args[0], args[dims_at] if len(args) > dims_at else None
        dims = (dims,) if isinstance(dims, int) and not isinstance(dims, bool) else dims
        return staging_blocks(target, x, dims if isinstance(dims, (list, tuple)) else None, item or max(4, x.element_size()))

    return sizes


def _sum(target: Target, args: Any, result: Any) -> Sequence[int]:
    """Integers and masks are copied to int64 first."""
    x = args[0]
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return _reduction(dims_at=1)(target, args, result)
    copied = () if x.dtype == torch.int64 else (8 * x.numel(),)
    return (*copied, *_reduction(dims_at=1, item=8)(target, args, result))


def _extreme(target: Target, args: Any, result: Any) -> Sequence[int]:
    return _reduction(dims_at=1, item=args[0].element_size())(target, args, result)


def _count_nonzero(target: Target, args: Any, result: Any) -> Sequence[int]:
    """A mask, and the mask as int64."""
    return args[0].numel(), 8 * args[0].numel(), *staging_blocks(target, args[0], None, 8)


def _logsumexp(target: Target, args: Any, result: Any) -> Sequence[int]:
    return (_bytes(result), _bytes(args[0]))


def _mean_loss(target: Target, args: Any, result: Any) -> Sequence[int]:
    """The loss of every element, before their mean is taken."""
    return (_bytes(args[0]),) if (args[2] if len(args) > 2 else 1) else ()


# -- norms and softmax ---------------------------------------------------------------------------------------------------------

MANY_ROWS, ROWS_A_PART, MOST_PARTS = 65536, 32, 32768


def _norm_backward(weights: int) -> Sizes:
    """Gradients of the weights of a layer norm, in parts where rows are many and short."""

    def sizes(target: Target, args: Any, result: Any) -> Sequence[int]:
        x, width = args[1], math.prod(args[2])
        rows, columns = x.numel() // max(width, 1), -(-width // ROWS_A_PART)
        if rows <= MANY_ROWS or columns >= target.gpu.num_sms / 2:
            return ()
        parts = min(-(-rows // ROWS_A_PART), MOST_PARTS // columns)
        return (parts * width * x.element_size(),) * weights

    return sizes


def _group_norm(target: Target, args: Any, result: Any) -> Sequence[int]:
    return (4 * args[3] * args[4],) * 2


def _group_norm_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    batch, channels, groups = args[5], args[6], args[8]
    return (*(4 * batch * channels,) * 3, *(4 * batch * groups,) * 2)


def _softmax_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    return (_bytes(args[0]),)


def _safe_softmax(target: Target, args: Any, result: Any) -> Sequence[int]:
    """Masks of what is minus infinity, and of the rows that are so altogether; the zero to set them to."""
    x = args[0]
    return x.numel(), x.numel() // max(x.shape[args[1]], 1), x.element_size()


# -- matrices ------------------------------------------------------------------------------------------------------------------


def _products(first: int) -> Sizes:
    """cuBLAS wants rows or columns without gaps; other operands, from argument number ``first`` on, are copied."""

    def sizes(target: Target, args: Any, result: Any) -> Sequence[int]:
        return [_bytes(x) for x in args[first : first + 2] if not _is_dense(x)]

    return sizes


def _is_dense(x: torch.Tensor) -> bool:
    *_, rows, columns = x.shape
    *_, down, across = x.stride()
    return (across == 1 and down >= columns) or (down == 1 and across >= rows) or rows == 1 or columns == 1


# -- the rest ------------------------------------------------------------------------------------------------------------------


def _roll(target: Target, args: Any, result: Any) -> Sequence[int]:
    """One dimension after the other."""
    return (_bytes(args[0]),) if len(args[1]) > 1 else ()


def _cumsum(target: Target, args: Any, result: Any) -> Sequence[int]:
    return (_bytes(result),) if args[0].dtype != result.dtype else ()


def _foreach_norm(target: Target, args: Any, result: Any) -> Sequence[int]:
    largest = max((x.numel() for x in args[0]), default=0)
    return (4 * len(args[0]) * -(-largest // 65536),)


def _grouped_mm(target: Target, args: Any, result: Any) -> Sequence[int]:
    groups = args[1].shape[0] if args[1].dim() == 3 else args[2].shape[0] if len(args) > 2 and args[2] is not None else 1
    return (60 * groups, 512 * target.gpu.num_sms)


def _ctc_loss(target: Target, args: Any, result: Any) -> Sequence[int]:
    return (8 * args[0].shape[1],) * 3


def _ctc_loss_backward(target: Target, args: Any, result: Any) -> Sequence[int]:
    return (_bytes(args[6]),)


def _multinomial(target: Target, args: Any, result: Any) -> Sequence[int]:
    """Random numbers for every weight, or with replacement a running sum of them."""
    return (_bytes(args[0]),) * (3 if len(args) > 2 and args[2] else 1)


RULES = (
    WorkspaceRule(operators=(aten._scaled_dot_product_cudnn_attention.default,), sizes=attention_memory.cudnn, source=BY_CUDNN),
    WorkspaceRule(
        operators=(aten._scaled_dot_product_cudnn_attention_backward.default,),
        sizes=attention_memory.cudnn_backward,
        source=BY_CUDNN,
    ),
    WorkspaceRule(
        operators=(aten._scaled_dot_product_flash_attention.default,),
        sizes=attention_memory.flash,
        source="ATen/native/transformers/cuda/flash_attn/flash_api.cpp",
    ),
    WorkspaceRule(
        operators=(aten._scaled_dot_product_flash_attention_backward.default,),
        sizes=attention_memory.flash_backward,
        source="ATen/native/transformers/cuda/flash_attn/flash_api.cpp",
    ),
    WorkspaceRule(
        operators=(aten._scaled_dot_product_efficient_attention.default,),
        sizes=attention_memory.efficient,
        source="ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h",
    ),
    WorkspaceRule(
        operators=(aten._scaled_dot_product_efficient_attention_backward.default,),
        sizes=attention_memory.efficient_backward,
        source="ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h",
    ),
    WorkspaceRule(
        operators=(aten.embedding_dense_backward.default,),
        sizes=sorting.embedding_backward,
        source="ATen/native/cuda/EmbeddingBackwardKernel.cu; sizes measured",
    ),
    WorkspaceRule(
        operators=(aten._embedding_bag_backward.default,),
        sizes=sorting.embedding_bag_backward,
        source="ATen/native/cuda/EmbeddingBag.cu, likewise",
    ),
    WorkspaceRule(
        operators=(aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default),
        sizes=sorting.index_put,
        source="ATen/native/cuda/Indexing.cu; sizes measured",
    ),
    WorkspaceRule(
        operators=(aten.sort.default, aten.sort.stable, aten.argsort.default, aten.argsort.stable),
        sizes=sorting.sort,
        source="ATen/native/cuda/Sort.cpp, SortStable.cu; sizes measured",
    ),
    WorkspaceRule(operators=(aten.topk.default,), sizes=sorting.topk, source="ATen/native/cuda/TensorTopK.cu; sizes measured"),
    WorkspaceRule(operators=(aten._unique2.default,), sizes=sorting.unique, source="ATen/native/cuda/Unique.cu; sizes measured"),
    WorkspaceRule(operators=(aten.nonzero.default,), sizes=sorting.nonzero, source="ATen/native/cuda/Nonzero.cu; sizes measured"),
    WorkspaceRule(operators=(aten.randperm.default,), sizes=sorting.randperm, source="ATen/native/cuda/Randperm.cu; measured"),
    WorkspaceRule(
        operators=(aten.sum.dim_IntList, aten.sum.default),
        sizes=_sum,
        source=REDUCTIONS,
    ),
    WorkspaceRule(
        operators=(aten.mean.dim, aten.mean.default, aten.prod.dim_int, aten.prod.default),
        sizes=_reduction(dims_at=1),
        source=REDUCTIONS,
    ),
    WorkspaceRule(
        operators=(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default),
        sizes=_extreme,
        source=REDUCTIONS,
    ),
    WorkspaceRule(operators=(aten.any.default, aten.all.default), sizes=_reduction(dims_at=1, item=1), source=REDUCTIONS),
    WorkspaceRule(
        operators=(aten.argmax.default, aten.argmin.default, aten.var.correction, aten.std.correction, aten.var_mean.correction),
        sizes=_reduction(dims_at=1, item=16),
        source="ATen/native/cuda/Reduce.cuh: a value and an index, or a mean, a sum of squares and a count",
    ),
    WorkspaceRule(operators=(aten.linalg_vector_norm.default,), sizes=_reduction(dims_at=2), source=REDUCTIONS),
    WorkspaceRule(operators=(aten.count_nonzero.default,), sizes=_count_nonzero, source="ATen/native/TensorAdvancedIndexing.cpp"),
    WorkspaceRule(operators=(aten.logsumexp.default,), sizes=_logsumexp, source="ATen/native/ReduceOps.cpp"),
    WorkspaceRule(operators=(aten.mse_loss.default, aten.smooth_l1_loss.default), sizes=_mean_loss, source="ATen/native/Loss.cpp"),
    WorkspaceRule(
        operators=(aten._softmax_backward_data.default,),
        sizes=_softmax_backward,
        source="ATen/native/cuda/SoftMax.cu: gradient times output",
    ),
    WorkspaceRule(operators=(aten._safe_softmax.default,), sizes=_safe_softmax, source="ATen/native/SoftMax.cpp"),
    WorkspaceRule(
        operators=(aten.native_layer_norm_backward.default,),
        sizes=_norm_backward(weights=2),
        source="ATen/native/cuda/layer_norm_kernel.cu",
    ),
    WorkspaceRule(
        operators=(aten._fused_rms_norm_backward.default,),
        sizes=_norm_backward(weights=1),
        source="ATen/native/cuda/layer_norm_kernel.cu",
    ),
    WorkspaceRule(operators=(aten.native_group_norm.default,), sizes=_group_norm, source="ATen/native/cuda/group_norm_kernel.cu"),
    WorkspaceRule(
        operators=(aten.native_group_norm_backward.default,),
        sizes=_group_norm_backward,
        source="ATen/native/cuda/group_norm_kernel.cu",
    ),
    WorkspaceRule(operators=(aten.mm.default, aten.bmm.default), sizes=_products(first=0), source="ATen/native/cuda/Blas.cpp"),
    WorkspaceRule(
        operators=(aten.addmm.default, aten.baddbmm.default), sizes=_products(first=1), source="ATen/native/cuda/Blas.cpp"
    ),
    WorkspaceRule(operators=(aten.roll.default,), sizes=_roll, source="ATen/native/cuda/TensorTransformations.cu"),
    WorkspaceRule(operators=(aten.cumsum.default,), sizes=_cumsum, source="ATen/native/ReduceOps.cpp: converted first"),
    WorkspaceRule(operators=(aten.multinomial.default,), sizes=_multinomial, source="ATen/native/cuda/MultinomialKernel.cu"),
    WorkspaceRule(operators=(aten._foreach_norm.Scalar,), sizes=_foreach_norm, source="ATen/native/cuda/ForeachReduceOp.cu"),
    WorkspaceRule(operators=(aten._grouped_mm.default,), sizes=_grouped_mm, source=MEASURED),
    WorkspaceRule(operators=(aten._ctc_loss.default,), sizes=_ctc_loss, source="ATen/native/cuda/LossCTC.cu"),
    WorkspaceRule(operators=(aten._ctc_loss_backward.default,), sizes=_ctc_loss_backward, source="ATen/native/cuda/LossCTC.cu"),
    WorkspaceRule(
        operators=(aten._cudnn_rnn.default,),
        sizes=recurrent.workspace,
        source=f"{BY_CUDNN}; interpolated: see recurrent.py",
        assumption=RECURRENT,
    ),
    WorkspaceRule(
        operators=(aten._cudnn_rnn_backward.default,),
        sizes=recurrent.backward_workspace,
        source=f"{BY_CUDNN}; interpolated: see recurrent.py",
    ),
    WorkspaceRule(
        operators=(aten.convolution.default,),
        sizes=convolution.forward,
        source=f"{BY_CUDNN}; within some MiB: see convolution.py",
        assumption=CONVOLUTIONS,
    ),
    WorkspaceRule(
        operators=(aten.convolution_backward.default,),
        sizes=convolution.backward,
        source=f"{BY_CUDNN}, likewise; the gradient of the bias is a sum: ATen/native/Convolution.cpp",
        by_output=True,
    ),
)


def rules_by_operator() -> dict[Any, WorkspaceRule]:
    return {operator: rule for rule in RULES for operator in rule.operators}
