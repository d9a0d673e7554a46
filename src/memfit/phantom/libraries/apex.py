"""NVIDIA's apex: fused optimizers, norms and softmax, where it is not installed, with the compiled modules that Megatron imports.

Facts: apex/optimizers/fused_adam.py and its neighbours (the averages are float32, whatever the parameter is), fused_sgd.py (one
buffer like the parameter), fused_lamb.py; apex/normalization/fused_layer_norm.py and csrc/layer_norm_cuda_kernel.cu (input, mean
and inverse deviation are kept, backward sums 16 parts of the weights' gradients in float32). The update itself is one kernel over
all tensors, and takes nothing. csrc/megatron: softmax makes its result alone and works in place backwards; gradients of weights are
added where they belong. csrc/multi_tensor_l2norm_kernel.cu: 320 parts, and the norms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from memfit.phantom.clock.launches import launched
from memfit.phantom.current import current
from memfit.phantom.libraries.stand_ins import Fill, filling

PARTS = 16
NORM_PARTS = 320
ROWS_IN_A_BLOCK = 4
"""Of softmax: four warps, each with one row, or with two that are short."""
SHORT_ROW = 128


class FusedAdam(torch.optim.Optimizer):
    """apex's."""

    average_dtype: torch.dtype | None = torch.float32
    averages: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(self, params: Any, lr: float = 1e-3, *args: Any, set_grad_none: bool = True, **options: Any) -> None:
        current()
        self.set_grad_none = set_grad_none
        keeps_master = bool(options.pop("use_master", False) or options.pop("master_weights", False))
        defaults = {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, **options}
        super().__init__(params, defaults)
        every = [param for group in self.param_groups for param in group["params"]]
        self.master_params = [param.detach().clone().float() for param in every] if keeps_master else []
        self._overflow = torch.zeros(1, dtype=torch.int, device="cuda")

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updated: list[torch.Tensor] = []
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for param in group["params"]:
                if param.grad is None:
                    continue
                if not self.state[param]:
                    self.state[param].update({name: self._average(param) for name in self.averages})
                averages = [self.state[param][name] for name in self.averages]
                updated += [param.grad, param, param, *averages, *averages]
        launched("fused_update", updated)
        return loss

    def _average(self, param: torch.Tensor) -> torch.Tensor:
        made = torch.zeros_like(param)
        return made if self.average_dtype is None else made.to(self.average_dtype)


class FusedLAMB(FusedAdam):
    """Its averages are like the parameter, and it measures the norm of each gradient."""

    average_dtype = None


class FusedNovoGrad(FusedAdam):
    average_dtype = None
    averages = ("exp_avg",)


class FusedAdagrad(FusedAdam):
    average_dtype = None
    averages = ("sum",)


class FusedSGD(FusedAdam):
    """One buffer, with momentum only."""

    average_dtype = None

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.0, *args: Any, **options: Any) -> None:
        self.averages = ("momentum_buffer",) if momentum else ()
        super().__init__(params, lr, momentum=momentum, **options)


class _FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any, bias: Any, num_columns: int, has_mean: bool, keeps_output: bool) -> Any:
        x = x.contiguous()
        num_rows = x.numel() // num_columns
        out = torch.empty_like(x)
        rows = [x.new_empty(num_rows, dtype=torch.float32) for _ in range(2 if has_mean else 1)]
        kept = [each for each in (out if keeps_output else x, weight, bias) if each is not None]
        ctx.save_for_backward(*kept, *(rows[-1:] if keeps_output else rows))
        ctx.has_weight, ctx.has_bias, ctx.num_columns = weight is not None, bias is not None, num_columns
        launched("fused_norm", [x, out])
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad = grad.contiguous()
        kept = ctx.saved_tensors
        made = torch.empty_like(grad)
        weights = kept[1 : 1 + ctx.has_weight + ctx.has_bias]
        parts = [grad.new_empty((PARTS, ctx.num_columns), dtype=torch.float32) for _ in weights]
        grads = [torch.empty_like(weight) for weight in weights]
        launched("fused_norm_backward", [grad, kept[0], made])
        parts.clear()
        return made, *(*grads, None, None)[:2], None, None, None


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """Called by Megatron as it is."""

    @staticmethod
    def apply(x: torch.Tensor, weight: Any, bias: Any, shape: Any, eps: float, memory_efficient: bool = False, *more: Any) -> Any:
        return _FusedNorm.apply(x, weight, bias, torch.Size(shape).numel(), True, memory_efficient)  # type: ignore[no-untyped-call]


class FastLayerNormFN(torch.autograd.Function):
    """The norm of ``apex.contrib``."""

    @staticmethod
    def apply(x: torch.Tensor, weight: Any, bias: Any, eps: float, memory_efficient: bool = False) -> Any:
        return _FusedNorm.apply(x, weight, bias, weight.numel(), True, memory_efficient)  # type: ignore[no-untyped-call]


class FusedLayerNorm(nn.Module):
    has_mean = True

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        current()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.elementwise_affine, self.memory_efficient = eps, elementwise_affine, memory_efficient
        self.weight = nn.Parameter(torch.ones(self.normalized_shape)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.zeros(self.normalized_shape)) if elementwise_affine and self.has_mean else None

    def forward(self, x: torch.Tensor) -> Any:
        num_columns = torch.Size(self.normalized_shape).numel()
        return _FusedNorm.apply(x, self.weight, self.bias, num_columns, self.has_mean, self.memory_efficient)  # type: ignore[no-untyped-call]


class FusedRMSNorm(FusedLayerNorm):
    has_mean = False


class MixedFusedLayerNorm(FusedLayerNorm):
    """Its weights may be of another type than its input."""


class MixedFusedRMSNorm(FusedRMSNorm):
    """The same."""


# -- compiled modules ----------------------------------------------------------------------------------------------------------


class MultiTensorApply:
    """Calls an operator on lists of tensors."""

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(self, operator: Callable[..., Any], flag: torch.Tensor, lists: Any, *args: Any) -> Any:
        return operator(self.chunk_size, flag, lists, *args)


def update_in_place(chunk_size: int, flag: torch.Tensor, lists: Sequence[Sequence[torch.Tensor]], *options: Any) -> None:
    launched("multi_tensor", [tensor for tensors in lists for tensor in tensors])


def l2norm(chunk_size: int, flag: torch.Tensor, lists: Any, per_tensor: bool = False, *options: Any) -> Any:
    tensors = lists[0]
    parts = flag.new_zeros(NORM_PARTS, dtype=torch.float32)
    norms = flag.new_empty(len(tensors) if per_tensor else 0, dtype=torch.float32)
    launched("multi_tensor_l2norm", [*tensors, parts])
    return flag.new_empty(1, dtype=torch.float32), norms


def softmax(scores: torch.Tensor, *mask_and_scale: Any) -> torch.Tensor:
    probabilities = torch.empty_like(scores, memory_format=torch.contiguous_format)
    launched("scaled_softmax", [scores, probabilities])
    return probabilities


def softmax_backward(grad: torch.Tensor, probabilities: torch.Tensor, scale: Any) -> torch.Tensor:
    grad = grad.contiguous()
    launched("scaled_softmax_backward", [grad, grad, probabilities])
    return grad


def _batch_per_block(query_length: int, key_length: int, batch: int, heads: int) -> int:
    return ROWS_IN_A_BLOCK * (2 if key_length <= SHORT_ROW else 1)


def _add_weight_gradient(x: torch.Tensor, grad: torch.Tensor, main_grad: torch.Tensor) -> None:
    launched("wgrad_gemm_accum", [x, grad, main_grad, main_grad])


_SOFTMAX = filling(forward=softmax, backward=softmax_backward, get_batch_per_block=_batch_per_block)
_NORMS = filling(
    FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm, FusedLayerNormAffineFunction, FastLayerNormFN
)
_OPTIMIZERS = filling(FusedAdam, FusedLAMB, FusedNovoGrad, FusedAdagrad, FusedSGD)


MODULES: dict[str, Fill] = {
    "apex": lambda module: None,
    "apex.optimizers": _OPTIMIZERS,
    "apex.normalization": _NORMS,
    "apex.normalization.fused_layer_norm": _NORMS,
    "apex.contrib.layer_norm.layer_norm": _NORMS,
    "apex.multi_tensor_apply": filling(MultiTensorApply, multi_tensor_applier=MultiTensorApply(2048 * 32)),
    "amp_C": filling(
        **dict.fromkeys(("multi_tensor_scale", "multi_tensor_axpby", "multi_tensor_adam", "multi_tensor_sgd"), update_in_place),
        multi_tensor_l2norm=l2norm,
    ),
    "fused_weight_gradient_mlp_cuda": filling(
        wgrad_gemm_accum_fp32=_add_weight_gradient, wgrad_gemm_accum_fp16=_add_weight_gradient
    ),
    "scaled_upper_triang_masked_softmax_cuda": _SOFTMAX,
    "scaled_masked_softmax_cuda": _SOFTMAX,
    "scaled_softmax_cuda": _SOFTMAX,
    "generic_scaled_masked_softmax_cuda": _SOFTMAX,
}
"""Those that are no part of the package are built with it."""
