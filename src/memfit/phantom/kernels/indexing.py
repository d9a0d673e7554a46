"""Reading and writing by index: embeddings, sums by index, scatter, nonzero, one_hot, roll.

Backward of ``gather``, ``x[i]``, ``index_select``, ``max``, ``topk`` and ``sort`` adds the gradient into a tensor of zeros: torch
writes into those zeros. Under a dispatch mode torch makes a second tensor instead, because a tensor subclass might not allow
the write (ATen/TensorSubclassLikeUtils.h). The run that is predicted has no dispatch mode, so here too the zeros are the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from memfit.phantom.kernels.rule import Arguments, Kernel, ResultPlace, Rule, TakenBlocks, bytes_of
from memfit.phantom.kernels.sorting import pair_sort_bytes
from memfit.phantom.target import Target
from memfit.torch_compat.autograd import graph_task_id
from memfit.units import MIB

# -- embeddings ----------------------------------------------------------------------------------------------------------------

SMALL_REQUEST = MIB
"""Of CUDA's allocator: smaller blocks have a pool of their own."""
SORTED_INDICES = 3072
"""Up to this many indices, gradients of embeddings are added up without sorting."""
ROWS_PER_PART = 10
MAXIMUM = 2
"""The number of an embedding bag's mode."""


def embedding_backward(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """Copies of indices and of a gradient that are not contiguous. Where indices are many: the indices sorted, and the sums of the
    rows that share an index, in parts."""
    grad, indices, num_weights = args[:3]
    count, item = indices.numel(), indices.element_size()
    copies = tuple(bytes_of(x) for x in (indices, grad) if not x.is_contiguous())
    if count <= SORTED_INDICES:
        return (*copies, ResultPlace(0))
    segments = min(count, num_weights)
    parts = count // ROWS_PER_PART + segments
    sorting = pair_sort_bytes(count, item, item)
    # Where these are small, they make no difference: they end before the gradient comes, which is large.
    done = (-3 - len(copies), -4 - len(copies))
    while_sorting = (item * count, sorting, *done) if sorting > SMALL_REQUEST else ()
    sorts = (*copies, item * count, item * count, *while_sorting)
    numbers = (item * count, item * segments, item * segments, item * parts)
    if _has_few_segments(target, segments):
        sums = 4 * num_weights * grad.shape[-1] if grad.element_size() < 4 else 0
        return (*sorts, ResultPlace(0), *numbers, item * parts, sums)
    return (*sorts, ResultPlace(0), *numbers, 4 * parts * grad.shape[-1])


def _has_few_segments(target: Target, segments: int) -> bool:
    """Since 2.11 few sums are made in one kernel; measured: 100 rows of 768 are few, 512 of 768 and 1000 of 64 are not."""
    return target.torch >= (2, 11) and segments <= 2 * target.gpu.num_sms


def embedding_bag_backward(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """What `embedding_dense_backward` takes; nothing where the bags' maxima are taken, which know where they came from."""
    return () if args[8] == MAXIMUM else embedding_backward(target, (args[0], args[1], args[6]), result)


def _embedding_bag_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """Nothing; the bags' sizes and numbers come before the sums."""
    return ResultPlace(2), ResultPlace(1), ResultPlace(0), ResultPlace(3)


# -- sums by index -------------------------------------------------------------------------------------------------------------


def index_put_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Where values are added: what it takes to sort the indices."""
    if len(args) < 4 or not args[3]:
        return ()
    given = [index.shape for index in args[1] if index is not None]
    count = math.prod(torch.broadcast_shapes(*given)) if given else 0
    return (8 * count, 8 * count, -1, *[8 * count] * 3, pair_sort_bytes(count, 8)) if count else ()


def _into_first(target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """In backward: its first argument, written in place."""
    # A forward that is computed again during backward has gradients enabled; backward itself has not.
    return target if graph_task_id() != -1 and not torch.is_grad_enabled() else NotImplemented


def _index_put(target: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False) -> Any:
    """In backward, where values are added: its first argument, written in place."""
    return _into_first(target) if accumulate else NotImplemented


# -- the rest ------------------------------------------------------------------------------------------------------------------

NONZERO_BYTES = 21503
"""cub's count of what is set, for any length."""


def _nonzero_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """A number, and cub's memory to count what is set."""
    return (4, NONZERO_BYTES)


def _one_hot(target: Target) -> Kernel:
    """`scatter_` of ones into zeros."""

    def one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        classes = num_classes if num_classes >= 0 else int(x.max()) + 1
        return x.new_zeros((*x.shape, classes)).scatter_(-1, x.unsqueeze(-1), 1)

    return one_hot


def _roll_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """Where several dimensions are rolled, one after the other: what was rolled so far, until the next is done."""
    size, num_dims = bytes_of(args[0]), len(args[1])
    between = [step for number in range(1, num_dims - 1) for step in (size, -number)]
    return (size, *between, ResultPlace(0)) if num_dims > 1 else ()


INDEX_PUT = "ATen/native/cuda/Indexing.cu; sizes measured"
IN_PLACE = "torch/csrc/autograd/FunctionsManual.cpp, ATen/TensorSubclassLikeUtils.h"

RULES = (
    Rule(
        operators=("embedding_dense_backward",),
        takes=embedding_backward,
        source="ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu; sizes measured",
    ),
    Rule(operators=("_embedding_bag",), takes=_embedding_bag_blocks, source="ATen/native/cuda/EmbeddingBag.cu"),
    Rule(
        operators=("_embedding_bag_backward",),
        takes=embedding_bag_backward,
        source="ATen/native/cuda/EmbeddingBag.cu; sizes measured",
    ),
    Rule(operators=("index_put",), returns=_index_put, takes=index_put_blocks, source=f"{INDEX_PUT}; {IN_PLACE}"),
    Rule(operators=("index_put_", "_index_put_impl_"), takes=index_put_blocks, source=INDEX_PUT),
    Rule(operators=("scatter.src", "scatter_add", "index_add", "masked_scatter"), returns=_into_first, source=IN_PLACE),
    Rule(operators=("nonzero",), takes=_nonzero_blocks, source="ATen/native/cuda/Nonzero.cu; sizes measured"),
    Rule(operators=("one_hot",), runs=_one_hot, source="ATen/native/Onehot.cpp"),
    Rule(operators=("roll",), takes=_roll_blocks, source="ATen/native/cuda/TensorTransformations.cu"),
)
