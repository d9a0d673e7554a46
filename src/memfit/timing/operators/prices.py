"""What one call of an operator costs on a GPU: every operator finds its family here.

::

    FAMILIES                     a formula for it
    a row of the rates           bytes, bandwidth and rate
    one_pass, slow of the rates  one pass over every element
    anything else                the same, and the cost says that it is a guess
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from memfit.hardware import GIGA, Gpu
from memfit.timing.basis import rates_of
from memfit.timing.operators.attention import price_attention
from memfit.timing.operators.calls import Bound, Call, Cost, Operand
from memfit.timing.operators.elementwise import is_covered, price_elementwise
from memfit.timing.operators.images.convolution import price_convolution
from memfit.timing.operators.images.layers import price_batch_norm, price_group_norm, price_places
from memfit.timing.operators.indexing import price_embedding_backward, price_lookup, price_scattered
from memfit.timing.operators.memory_bound import (
    price_cat,
    price_factor,
    price_fill,
    price_layer_norm,
    price_loss,
    price_put_back,
    price_reduction,
    price_row,
    price_scan,
    price_shards,
    price_softmax,
    price_weight_norm,
    written,
)
from memfit.timing.operators.products import price_grouped_product, price_product
from memfit.timing.operators.recurrent import price_recurrent
from memfit.timing.rates import MICRO, Rates


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """What a run has set that decides which kernels are chosen."""

    allow_tf32: bool = False
    """Products of float32 may use tensor cores."""
    convolution_tf32: bool = True
    """Convolutions of float32 may."""
    is_sustained: bool = True
    """The GPU is at work all the time, as in training; otherwise for the moment of one call, when its clock is higher."""


T = TypeVar("T")

UNPRICED: Final = "no rule prices it: it is taken to go once over every element"
"""The assumption of a cost that is a guess."""

Price = Callable[[Call, Gpu, Rates], Cost]
PriceBySettings = Callable[[Call, Gpu, Rates, KernelSettings], Cost]


def _nothing(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """Memory is taken, or a tensor is looked at in another way: no kernel runs."""
    return Cost(call.operator, 0.0, Bound.NOTHING, num_kernels=0)


def _product(call: Call, chip: Gpu, rates: Rates, settings: KernelSettings) -> Cost:
    """A product with a vector is bound by what it reads."""
    if sum(len(tensor.shape) >= 2 and not tensor.device_kind for tensor in call.inputs) < 2:
        return price_elementwise(call, chip, rates)
    return price_product(call, chip, rates, settings.allow_tf32, settings.is_sustained)


def _grouped_product(call: Call, chip: Gpu, rates: Rates, settings: KernelSettings) -> Cost:
    return price_grouped_product(call, chip, rates, settings.allow_tf32, settings.is_sustained)


def _convolution(call: Call, chip: Gpu, rates: Rates, settings: KernelSettings) -> Cost:
    return price_convolution(call, chip, rates, settings.convolution_tf32, settings.is_sustained)


def _recurrent(call: Call, chip: Gpu, rates: Rates, settings: KernelSettings) -> Cost:
    return price_recurrent(call, chip, rates, settings.convolution_tf32)


def _by_name(families: dict[T, str]) -> dict[str, T]:
    return {name: price for price, names in families.items() for name in names.split()}


_ATTENTION: Final = " ".join(
    f"_scaled_dot_product_{kind}_attention{end}" for kind in ("flash", "efficient", "cudnn") for end in ("", "_backward")
)

FAMILIES_BY_SETTINGS: Final[dict[str, PriceBySettings]] = _by_name(
    {
        _product: "mm bmm addmm baddbmm addbmm _scaled_mm mv addmv dot _int_mm _addmm_activation",
        _grouped_product: "_grouped_mm",
        _convolution: "convolution convolution_backward _convolution cudnn_convolution",
        _recurrent: "_cudnn_rnn _cudnn_rnn_backward",
    }
)
"""Operators whose kernels depend on what a run has set."""

FAMILIES: Final[dict[str, Price]] = _by_name(
    {
        price_attention: _ATTENTION,
        price_reduction: "sum mean amax amin argmax argmin max min var var_mean std prod any all linalg_vector_norm norm logsumexp "
        "count_nonzero",
        price_layer_norm: "native_layer_norm native_layer_norm_backward",
        price_weight_norm: "_weight_norm_interface _weight_norm_interface_backward",
        price_softmax: "_softmax _log_softmax _log_softmax_backward_data",
        price_batch_norm: "cudnn_batch_norm cudnn_batch_norm_backward native_batch_norm native_batch_norm_backward "
        "_native_batch_norm_legit _batch_norm_with_update batch_norm_backward",
        price_group_norm: "native_group_norm",
        price_embedding_backward: "embedding_dense_backward",
        price_lookup: "embedding index_select index _unsafe_index gather",
        price_scattered: "index_add index_add_ index_copy index_copy_ scatter scatter_ scatter_add scatter_add_ scatter_reduce "
        "scatter_reduce_ index_put index_put_ _index_put_impl_ _unsafe_index_put",
        price_loss: "nll_loss_forward",
        price_scan: "cumsum cumprod logcumsumexp",
        price_put_back: "slice_backward select_backward diagonal_backward",
        price_cat: "cat",
        price_shards: "fsdp::all_gather_copy_in fsdp::split_with_sizes_copy fsdp::chunk_cat fsdp::chunk_cat_mixed_dtype",
        price_fill: "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full zero_ fill_ arange scalar_tensor "
        "eye linspace",
        _nothing: "empty empty_like empty_strided new_empty new_empty_strided empty_permuted _unsafe_view _reshape_alias "
        "lift_fresh detach resize_ set_ _nested_view_from_buffer record_stream _assert_async alias "
        "fsdp::record_grad_output_stream",
    }
)


def price(call: Call, chip: Gpu, settings: KernelSettings = KernelSettings(), rates: Rates | None = None) -> Cost:  # noqa: B008 (it never changes)
    """What a call costs, by default at the rates of its GPU. No cost is below what the GPU's peaks allow."""
    rates = rates or rates_of(chip)
    tensors = (*call.inputs, *call.outputs)
    if tensors and all(tensor.device_kind for tensor in tensors):
        return price_on_host(call, rates)
    if any(tensor.device_kind and tensor.shape for tensor in tensors) and call.name in ("copy_", "_to_copy", "_foreach_copy_"):
        return price_transfer(call, chip, rates)
    cost = _price_on_gpu(call, chip, settings, rates)
    if call.name == "embedding":
        return replace(cost, tokens=call.inputs[1].numel)
    if _looks_first(call):
        return replace(cost, looks_first=True)
    return cost


def _price_on_gpu(call: Call, chip: Gpu, settings: KernelSettings, rates: Rates) -> Cost:
    name = call.name
    if by_settings := FAMILIES_BY_SETTINGS.get(name):
        return by_settings(call, chip, rates, settings)
    if family := FAMILIES.get(name):
        return family(call, chip, rates)
    if name in rates.places.operators:
        return price_places(call, chip, rates)
    if name in rates.rows:
        return price_row(call, chip, rates)
    if name in rates.factors.column_us:
        return price_factor(call, chip, rates)
    cost = price_elementwise(call, chip, rates)
    return cost if is_covered(name, rates) else replace(cost, assumption=UNPRICED)


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
        return any(isinstance(index, Operand) and index.dtype in ("bool", "u8") and not index.device_kind for index in given)
    if call.name in _LENGTHS:
        return any(isinstance(length, Operand) and not length.device_kind for length in call.arguments[_LENGTHS[call.name]])
    return call.name in _SIZED_BY_DATA and bool(call.inputs) and not call.inputs[0].device_kind


def least_seconds(call: Call, chip: Gpu, settings: KernelSettings = KernelSettings()) -> float:  # noqa: B008
    """What physics forbids to beat: the arithmetic of products at the peak of their type, what is written at the memory's rate less
    what the cache can hold."""
    cost = price(call, chip, settings)
    if cost.bound in (Bound.HOST, Bound.NOTHING):
        return 0.0
    peak = chip.product_flops(cost.flops_type) if cost.flops_type else math.inf
    written_bytes = max(0.0, written(call) - chip.last_level_cache_bytes)
    return max(cost.flops / peak, written_bytes / chip.memory_bandwidth if cost.bound is not Bound.LINK else 0.0)


UNTOUCHED: Final = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"))
"""Memory is taken and not written to: the system gives it when it is touched. Pinned memory is kept by torch, and used again."""


def price_transfer(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """A copy from the host or to it."""
    own, size = rates.transfers, max((tensor.size_bytes for tensor in call.outputs), default=0)
    is_pinned = any(tensor.device_kind == "p" for tensor in (*call.inputs, *call.outputs))
    bandwidth = chip.host_bandwidth * own.pinned_share
    if not is_pinned and size > own.pageable_bytes:
        from_gpu = own.pageable_new if call.name == "_to_copy" and size > own.new_memory_bytes else own.pageable_from
        bandwidth = min(bandwidth, (from_gpu if call.outputs[0].device_kind else own.pageable_to) * GIGA)
    return Cost(call.operator, own.start_us * MICRO + size / bandwidth + _packed(call, chip, rates), Bound.LINK, moved_bytes=size)


def _packed(call: Call, chip: Gpu, rates: Rates) -> float:
    """Seconds of a copy on the GPU, before one to the host, of what lies in another order there."""
    given = call.inputs[-1]
    if given.device_kind or given.stride is None or not call.outputs or call.outputs[0].stride == given.stride:
        return 0.0
    return price_elementwise(Call("clone", (given,), (replace(given, stride=None),)), chip, rates).seconds


def price_on_host(call: Call, rates: Rates) -> Cost:
    """An operator whose tensors are all on the host: the host itself takes this long."""
    if call.name in UNTOUCHED:
        return Cost(call.operator, 0.0, Bound.HOST, num_kernels=0)
    moved = sum(tensor.touched_bytes for tensor in (*call.inputs, *call.outputs))
    seconds = moved / (rates.transfers.host_bandwidth * GIGA)
    if not call.name.endswith("_"):
        new = sum(tensor.size_bytes for tensor in call.outputs if tensor.size_bytes > rates.transfers.new_memory_bytes)
        seconds = max(seconds, new / (rates.transfers.new_memory_bandwidth * GIGA))
    return Cost(call.operator, seconds, Bound.HOST, num_kernels=0, moved_bytes=moved)
