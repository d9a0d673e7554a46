"""Operators for which CUDA takes another way than the host: one row a rule, each with the source of its fact.

A rule replaces the body of a composite operator for the phantom's device kind alone. Autograd then sees the operators that CUDA
would have run, and saves for backward what they save.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memfit.phantom.attention import Attention
from memfit.phantom.replacing import Replacements
from memfit.phantom.target import Target
from memfit.phantom.torch_private import below_autograd

KEY = "AutogradPrivateUse1"

aten = torch.ops.aten
Kernel = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class KernelRule:
    """For one operator: what CUDA runs in its place."""

    operator: str
    make: Callable[[Target], Kernel]
    source: str


def _rms_norm(target: Target) -> Kernel:
    def rms_norm(x: torch.Tensor, shape: Any, weight: torch.Tensor | None = None, eps: float | None = None) -> torch.Tensor:
        if target.torch >= (2, 9) and not x.is_complex() and (weight is None or weight.dtype == x.dtype):
            return aten._fused_rms_norm(x, shape, weight, eps)[0]  # type: ignore[no-any-return]
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        wide = x.float()
        dims = tuple(range(-len(shape), 0))
        normed = (wide * torch.rsqrt(wide.pow(2).mean(dims, keepdim=True).add(eps))).type_as(x)
        return normed if weight is None else normed * weight

    return rms_norm


def _softmax(fused: Any) -> Callable[[Target], Kernel]:
    def make(target: Target) -> Kernel:
        def softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
            if dtype == torch.float32 and x.dtype == torch.float16:
                return fused(x, dim, True)  # type: ignore[no-any-return]
            return fused(x if dtype is None else x.to(dtype), dim, False)  # type: ignore[no-any-return]

        return softmax

    return make


def _one_kernel(operator: Any) -> Callable[[Target], Kernel]:
    """The operator is one kernel, not the several that torch composes where it has none."""

    def make(target: Target) -> Kernel:
        def kernel(*args: Any) -> Any:
            with below_autograd():
                return operator(*args)

        return kernel

    return make


RULES = (
    KernelRule(
        operator="scaled_dot_product_attention", make=Attention, source="ATen/native/transformers/cuda/sdp_utils.cpp, attention.cpp"
    ),
    KernelRule(
        operator="rms_norm", make=_rms_norm, source="ATen/native/layer_norm.cpp: fused on CUDA since 2.9, if the types agree"
    ),
    KernelRule(
        operator="softmax.int",
        make=_softmax(aten._softmax),
        source="ATen/native/SoftMax.cpp: float16 is converted inside the kernel",
    ),
    KernelRule(
        operator="silu_backward", make=_one_kernel(aten.silu_backward.default), source="native_functions.yaml: has a CUDA kernel"
    ),
    KernelRule(operator="mish_backward", make=_one_kernel(aten.mish_backward.default), source="native_functions.yaml, likewise"),
    KernelRule(operator="log_softmax.int", make=_softmax(aten._log_softmax), source="ATen/native/SoftMax.cpp, likewise"),
)


def install(replacements: Replacements, target: Target) -> None:
    library = torch.library.Library("aten", "IMPL", KEY)
    replacements.finally_call(library._destroy)
    for rule in RULES:
        library.impl(rule.operator, rule.make(target))
