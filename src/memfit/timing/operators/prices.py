"""What one call of an operator costs on a GPU: every operator finds its family here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from memfit.timing.chips import MICRO, Chip
from memfit.timing.operators.attention import price_attention
from memfit.timing.operators.calls import Call, Operand
from memfit.timing.operators.costs import Bound, Cost
from memfit.timing.operators.elementwise import price_elementwise
from memfit.timing.operators.images.convolution import price_convolution
from memfit.timing.operators.images.layers import PLACES, price_batch_norm, price_group_norm, price_places
from memfit.timing.operators.memory_bound import (
    ROWS,
    memory_cost,
    price_cat,
    price_embedding_backward,
    price_layer_norm,
    price_loss,
    price_put_back,
    price_reduction,
    price_row,
    price_scan,
    price_softmax,
    price_weight_norm,
    written,
)
from memfit.timing.operators.products import price_grouped_product, price_product
from memfit.timing.operators.recurrent import price_recurrent
from memfit.timing.operators.transfers import price_on_host, price_transfer


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run has set that decides which kernels are chosen."""

    allow_tf32: bool = False
    """Products of float32 may use tensor cores."""
    convolution_tf32: bool = True
    """Convolutions of float32 may."""
    is_sustained: bool = True
    """The GPU is at work all the time, as in training; otherwise for the moment of one call, when its clock is higher."""


Price = Callable[[Call, Chip, Settings], Cost]


def _nothing(call: Call, chip: Chip, settings: Settings) -> Cost:
    """Memory is taken, or a tensor is looked at in another way: no kernel runs."""
    return Cost(call.operator, 0.0, Bound.NOTHING, num_kernels=0)


def _fill(call: Call, chip: Chip, settings: Settings) -> Cost:
    """Something is written everywhere, and nothing read."""
    return memory_cost(call, chip, 1.5 * MICRO, written(call), 4480)


def _product(call: Call, chip: Chip, settings: Settings) -> Cost:
    """A product with a vector is bound by what it reads."""
    if sum(len(tensor.shape) >= 2 and not tensor.place for tensor in call.inputs) < 2:
        return price_elementwise(call, chip)
    return price_product(call, chip, settings.allow_tf32, settings.is_sustained)


def _ignoring_settings(price: Callable[[Call, Chip], Cost]) -> Price:
    return lambda call, chip, settings: price(call, chip)


def _named(price: Price, *names: str) -> dict[str, Price]:
    return dict.fromkeys(names, price)


FAMILIES: Final[dict[str, Price]] = {
    **_named(_ignoring_settings(price_row), *ROWS),
    **_named(_product, "mm", "bmm", "addmm", "baddbmm", "addbmm", "_scaled_mm", "mv", "addmv", "dot", "_int_mm"),
    **_named(_product, "_addmm_activation"),
    **_named(
        lambda call, chip, settings: price_grouped_product(call, chip, settings.allow_tf32, settings.is_sustained), "_grouped_mm"
    ),
    **_named(
        _ignoring_settings(price_attention),
        *(f"_scaled_dot_product_{kind}_attention{way}" for kind in ("flash", "efficient", "cudnn") for way in ("", "_backward")),
    ),
    **_named(
        lambda call, chip, settings: price_convolution(call, chip, settings.convolution_tf32, settings.is_sustained),
        "convolution",
        "convolution_backward",
        "_convolution",
        "cudnn_convolution",
    ),
    **_named(
        _ignoring_settings(price_reduction),
        "sum",
        "mean",
        "amax",
        "amin",
        "argmax",
        "argmin",
        "max",
        "min",
        "var",
        "var_mean",
        "std",
        "prod",
        "any",
        "all",
        "linalg_vector_norm",
        "norm",
        "logsumexp",
        "count_nonzero",
    ),
    **_named(_ignoring_settings(price_layer_norm), "native_layer_norm", "native_layer_norm_backward"),
    **_named(_ignoring_settings(price_weight_norm), "_weight_norm_interface", "_weight_norm_interface_backward"),
    **_named(_ignoring_settings(price_softmax), "_softmax", "_log_softmax", "_log_softmax_backward_data"),
    **_named(
        _ignoring_settings(price_batch_norm),
        "cudnn_batch_norm",
        "cudnn_batch_norm_backward",
        "native_batch_norm",
        "native_batch_norm_backward",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "batch_norm_backward",
    ),
    **_named(_ignoring_settings(price_group_norm), "native_group_norm"),
    **_named(_ignoring_settings(price_places), *PLACES),
    **_named(_ignoring_settings(price_embedding_backward), "embedding_dense_backward"),
    **_named(_ignoring_settings(price_loss), "nll_loss_forward"),
    **_named(_ignoring_settings(price_scan), "cumsum", "cumprod", "logcumsumexp"),
    **_named(_ignoring_settings(price_put_back), "slice_backward", "select_backward", "diagonal_backward"),
    **_named(_ignoring_settings(price_cat), "cat"),
    **_named(
        lambda call, chip, settings: price_recurrent(call, chip, settings.convolution_tf32), "_cudnn_rnn", "_cudnn_rnn_backward"
    ),
    **_named(
        _fill,
        "zeros",
        "ones",
        "full",
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "zero_",
        "fill_",
        "arange",
        "scalar_tensor",
        "eye",
        "linspace",
    ),
    **_named(
        _nothing,
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "empty_permuted",
        "_unsafe_view",
        "_reshape_alias",
        "lift_fresh",
        "detach",
        "resize_",
        "set_",
        "_nested_view_from_buffer",
        "record_stream",
        "_assert_async",
        "alias",
    ),
}
"""By an operator's name; whatever is not here does the same to every element."""


def price(call: Call, chip: Chip, settings: Settings = Settings()) -> Cost:  # noqa: B008 (it never changes)
    """What a call costs. No cost is below what the GPU's peaks allow."""
    tensors = (*call.inputs, *call.outputs)
    if tensors and all(tensor.place for tensor in tensors):
        return price_on_host(call)
    if any(tensor.place and tensor.shape for tensor in tensors) and call.name in ("copy_", "_to_copy", "_foreach_copy_"):
        return price_transfer(call, chip)
    family = FAMILIES.get(call.name)
    cost = family(call, chip, settings) if family is not None else price_elementwise(call, chip)
    if call.name == "embedding":
        return replace(cost, tokens=call.inputs[1].numel)
    if _looks_first(call):
        return replace(cost, looks_first=True)
    return cost


_INDEXED: Final = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"))

_LENGTHS: Final = {"_ctc_loss": slice(2, 4), "_ctc_loss_backward": slice(3, 5)}
"""Where lengths stand among the arguments of operators that read them on the host."""

_SIZED_BY_DATA: Final = frozenset(("repeat_interleave", "bincount"))
"""How large their result is, only the GPU knows."""

MAY_LOOK: Final = frozenset(("_grouped_mm", *_INDEXED, *_LENGTHS, *_SIZED_BY_DATA))
"""The operators whose host may look at numbers on the GPU before it issues a kernel; all others never do."""


def _looks_first(call: Call) -> bool:
    """A mask that chooses elements says only on the GPU how many they are; lengths are read on the host, one by one."""
    if call.name in _INDEXED:
        indices = call.arguments[1] if len(call.arguments) > 1 else ()
        given = indices if isinstance(indices, tuple) else ()
        return any(isinstance(index, Operand) and index.dtype in ("bool", "u8") and not index.place for index in given)
    if call.name in _LENGTHS:
        return any(isinstance(length, Operand) and not length.place for length in call.arguments[_LENGTHS[call.name]])
    return call.name in _SIZED_BY_DATA and bool(call.inputs) and not call.inputs[0].place


def least_seconds(call: Call, chip: Chip, settings: Settings = Settings()) -> float:  # noqa: B008
    """What physics forbids to beat: the arithmetic of products at the peak of their type, what is written at the memory's rate less
    what the cache can hold."""
    cost = price(call, chip, settings)
    if cost.bound in (Bound.HOST, Bound.NOTHING):
        return 0.0
    peak = chip.tf32_flops if cost.flops_type == "tf32" else chip.product_flops(cost.flops_type) if cost.flops_type else math.inf
    written_bytes = max(0.0, written(call) - chip.cache_bytes)
    return max(cost.flops / peak, written_bytes / chip.memory_bandwidth if cost.bound is not Bound.LINK else 0.0)
