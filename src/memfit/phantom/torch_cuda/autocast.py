"""``torch.autocast("cuda")`` for the phantom GPU, with CUDA's lists.

Torch keeps one set of rules per kind of device, in C++. Those of CUDA look at the device of each tensor and would pass ours by, so
the same lists are applied here, as kernels of the device kind that our tensors have. The lists are those of ATen/autocast_mode.h.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from memfit.phantom.device.device_alias import INNER, OUTER
from memfit.phantom.kernels import recurrent
from memfit.phantom.target import Target
from memfit.torch_compat.dispatch import DispatchKey, DispatchKeySet, HigherOrderOperator, excluding_keys, tree_map_only
from memfit.torch_compat.patches import Patches

KEY = "AutocastPrivateUse1"

LOWER_PRECISION = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum",
    "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip

FULL_PRECISION = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "group_norm",
    "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss",
    "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d",
    "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_nearest3d",
    "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d",
    "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip

FULL_PRECISION_SINCE = {(2, 12): ("rms_norm",)}

FULL_PRECISION_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip

WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot", "scatter_add",
)  # fmt: skip

Kernel = Callable[..., Any]


MakeCast = Callable[[], torch.Tensor | None]
"""Makes the cast of a leaf when it is asked for; ``None`` where it is gone."""


class CastCache:
    """Casts of leaves that a model uses more than once, kept until the outermost autocast ends, as CUDA keeps them."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor | MakeCast]] = {}
        """By the leaf's identity: the leaf, and its cast, or what makes it when it is asked for."""

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        is_kept = (
            tensor.dtype == torch.float32
            and dtype == torch.get_autocast_dtype(OUTER)
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not is_kept:
            return tensor.to(dtype)
        entry = self.entries.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            cast = entry[1] if isinstance(entry[1], torch.Tensor) else entry[1]()
            if cast is not None:
                self.keep(tensor, cast)
                return cast
        cast = tensor.to(dtype)
        self.keep(tensor, cast)
        return cast

    def keep(self, tensor: torch.Tensor, cast: torch.Tensor | MakeCast) -> None:
        """Keeps the cast of a leaf, or what makes it."""
        self.entries[id(tensor)] = (weakref.ref(tensor), cast)

    def clear(self) -> None:
        self.entries.clear()


def install(patches: Patches, target: Target, cache: CastCache) -> None:
    others = torch.library.Library("_", "IMPL", KEY)
    patches.finally_call(others._destroy)
    others.fallback(torch.library.fallthrough_kernel)
    full = FULL_PRECISION + sum((names for since, names in FULL_PRECISION_SINCE.items() if target.torch >= since), ())
    for names, make in ((LOWER_PRECISION, _lower), (full, _full), (FULL_PRECISION_RESULT, _full_result), (WIDEST, _widest)):
        for name in names:
            overload = _find(name)
            if overload is not None:
                patches.implement(KEY, name, _below_autocast(make(overload, cache)))
    patches.implement(KEY, "_cudnn_rnn", _below_autocast(recurrent.in_autocast(cache.cast)))
    patches.wrap(HigherOrderOperator, "dispatch", _higher_order)
    _install_switches(patches, cache)


def _higher_order(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """Operators that take functions, such as flex attention: as under CUDA's autocast, where they have a rule for it."""
    on_the_phantom, on_cuda = getattr(DispatchKey, KEY), DispatchKey.AutocastCUDA

    def dispatch_as_cuda(operator: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        if key != on_the_phantom:
            return dispatch(operator, key, *args, **kwargs)
        with excluding_keys(DispatchKeySet(on_the_phantom)):
            return operator.py_kernels.get(on_cuda, operator)(*args, **kwargs)

    return dispatch_as_cuda


def _install_switches(patches: Patches, cache: CastCache) -> None:
    """What is switched for CUDA is switched for our device kind too."""
    set_enabled, set_dtype, clear = torch.set_autocast_enabled, torch.set_autocast_dtype, torch.clear_autocast_cache

    def set_autocast_enabled(*args: Any) -> None:
        set_enabled(*args)
        if args[0] == OUTER or isinstance(args[0], bool):
            set_enabled(INNER, args[-1])

    def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
        set_dtype(device_type, dtype)
        if device_type == OUTER:
            set_dtype(INNER, dtype)

    def clear_autocast_cache() -> None:
        cache.clear()
        clear()

    patches.replace(torch, "set_autocast_enabled", set_autocast_enabled)
    patches.replace(torch, "set_autocast_dtype", set_autocast_dtype)
    patches.replace(torch, "clear_autocast_cache", clear_autocast_cache)
    patches.finally_call(cache.clear)
    patches.finally_call(lambda: set_enabled(INNER, False))


def _find(name: str) -> Any:
    """The operator, or ``None`` where the installed torch has none of that name."""
    packet = getattr(torch.ops.aten, name.partition(".")[0], None)
    return getattr(packet, name.partition(".")[2] or "default", None)


def _below_autocast(kernel: Kernel) -> Kernel:
    def call(*args: Any, **kwargs: Any) -> Any:
        with excluding_keys(DispatchKeySet(getattr(DispatchKey, KEY))):
            return kernel(*args, **kwargs)

    return call


def _is_castable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.is_cuda and tensor.dtype != torch.float64


def _casting(args: Any, kwargs: Any, dtype: torch.dtype, cast: Callable[[torch.Tensor, torch.dtype], torch.Tensor]) -> Any:
    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return cast(tensor, dtype) if tensor.dtype != dtype and _is_castable(tensor) else tensor

    # The compiler of torch's wheels evaluates arguments from the last to the first; which memory they get depends on it.
    backwards = [tree_map_only(torch.Tensor, convert, arg) for arg in reversed(args)]
    return backwards[::-1], tree_map_only(torch.Tensor, convert, kwargs)


def _lower(overload: Any, cache: CastCache) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _casting(args, kwargs, torch.get_autocast_dtype(OUTER), cache.cast)
        return overload(*args, **kwargs)

    return kernel


def _full(overload: Any, cache: CastCache) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _casting(args, kwargs, torch.float32, torch.Tensor.to)
        return overload(*args, **kwargs)

    return kernel


def _full_result(overload: Any, cache: CastCache) -> Kernel:
    position = [argument.name for argument in overload._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = args[position] if len(args) > position else kwargs.get("dtype")
        if given is None and _is_castable(args[0]):
            args, kwargs = args[:position], {**kwargs, "dtype": torch.float32}
        return overload(*args, **kwargs)

    return kernel


def _widest(overload: Any, cache: CastCache) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        floats = [arg.dtype for arg in args if isinstance(arg, torch.Tensor) and _is_castable(arg)]
        widest = torch.float32 if torch.float32 in floats else torch.get_autocast_dtype(OUTER)
        args, kwargs = _casting(args, kwargs, widest, cache.cast)
        return overload(*args, **kwargs)

    return kernel


__not_compiled__ = True
