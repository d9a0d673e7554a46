"""Operators for which CUDA takes another way than the host: one row a rule, each with the source of its fact.

A rule replaces the body of a composite operator for the phantom's device kind alone. Autograd then sees the operators that CUDA
would have run, and saves for backward what they save.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memfit.phantom.kernels import recurrent
from memfit.phantom.kernels.attention import Attention
from memfit.phantom.target import Target
from memfit.torch_compat.patches import Patches

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


def _group_norm(target: Target) -> Kernel:
    def group_norm(
        x: torch.Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
    ) -> torch.Tensor:
        batch, channels = x.shape[:2]
        size = x.numel() // max(batch * channels, 1)
        return aten.native_group_norm(x.contiguous(), weight, bias, batch, channels, size, groups, eps)[0]  # type: ignore[no-any-return]

    return group_norm


def _one_hot(target: Target) -> Kernel:
    def one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        classes = num_classes if num_classes >= 0 else int(x.max()) + 1
        return x.new_zeros((*x.shape, classes)).scatter_(-1, x.unsqueeze(-1), 1)

    return one_hot


def _ctc_loss(target: Target) -> Kernel:
    def ctc_loss(
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: torch.Tensor,
        target_lengths: torch.Tensor,
        *rest: Any,
    ) -> torch.Tensor:
        steps, longest = log_probs.shape[0], targets.shape[-1] if targets.dim() == 2 else targets.shape[0] // target_lengths.numel()
        lengths = _lengths(input_lengths, steps), _lengths(target_lengths, longest)
        return aten.ctc_loss.IntList(log_probs, targets, *lengths, *rest)  # type: ignore[no-any-return]

    return ctc_loss


def _lengths(given: torch.Tensor, longest: int) -> list[int]:
    """Lengths on the host can be read; the longest stands for those on the GPU."""
    return [longest] * given.numel() if given.is_cuda else given.flatten().tolist()


def _never_runs(*args: Any) -> Any:
    """Modes answer before it is asked; that it is there keeps torch from composing it."""
    raise NotImplementedError


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
    KernelRule(operator="log_softmax.int", make=_softmax(aten._log_softmax), source="ATen/native/SoftMax.cpp, likewise"),
    KernelRule(operator="group_norm", make=_group_norm, source="ATen/native/group_norm.cpp: channels last is undone"),
    KernelRule(operator="one_hot", make=_one_hot, source="ATen/native/Onehot.cpp: ones are scattered into zeros"),
    KernelRule(operator="ctc_loss.Tensor", make=_ctc_loss, source="ATen/native/LossCTC.cpp: lengths are read back to the host"),
    KernelRule(operator="lstm.input", make=recurrent.lstm, source="ATen/native/RNN.cpp: cuDNN, if it takes the type"),
    KernelRule(operator="lstm.data", make=recurrent.lstm_packed, source="ATen/native/RNN.cpp, likewise"),
    *(
        KernelRule(
            operator=f"{name}.{kind}", make=make(mode, getattr(getattr(aten, name), kind)), source="ATen/native/RNN.cpp, likewise"
        )
        for name, mode in (("gru", recurrent.GRU), ("rnn_tanh", recurrent.RNN_TANH), ("rnn_relu", recurrent.RNN_RELU))
        for kind, make in (("input", recurrent.simple), ("data", recurrent.simple_packed))
    ),
)


ONE_KERNEL = ("_fused_rms_norm", "silu_backward", "mish_backward")
"""Operators that torch composes of others where it has no kernel of their own, as it has for CUDA: native_functions.yaml."""


def install(patches: Patches, target: Target) -> None:
    for rule in RULES:
        patches.implement(KEY, rule.operator, rule.make(target))
    for name in ONE_KERNEL:
        patches.implement("PrivateUse1", name, _never_runs)
    recurrent.install(patches)
