"""LoRA adapters beside frozen weights, and frozen weights in four bits, as PEFT and bitsandbytes make them.

::

    nn.Linear ──> NF4Linear   two weights a byte, and their scales; whole in 16 bits while a product uses them
         └──────> Adapted     the frozen layer, and two small trained products beside it

The same tensors, of the same types and for as long, so that memory and time are theirs; values are not. Checked against both
packages on the phantom GPU by ``tests/models/test_adapters.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memfit.errors import ConfigError

QUERIES_AND_VALUES: Final = (
    *("query", "value", "q_proj", "v_proj", "q", "v", "query_proj", "value_proj"),
    *("query_key_value", "qkv_proj", "c_attn", "Wqkv"),
)
"""What models call the layers that PEFT adapts where it is not told otherwise; the last four make keys, too."""

_NOT_ADAPTED: Final = ("head", "router")
"""Of memfit's own models: the output, and what chooses experts."""

_BLOCK, _OUTER_BLOCK = 64, 256
"""Weights that share a scale, and scales that share one of their own."""


def adapt(model: nn.Module, rank: int, modules: str, dtype: torch.dtype, *, quantize: str, computes: torch.dtype) -> nn.Module:
    """Freezes a model that is on the meta device, and puts adapters of this rank and type beside its layers.

    ``modules`` is ``query-value`` or ``all-linear``. With ``quantize``, the linear layers are kept in four bits and all other
    weights in float32, as ``peft.prepare_model_for_kbit_training`` does. Raises ``ConfigError`` where no layer is to be adapted.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    found = list(_linear_layers(model))
    adapted = [name for name, *_ in found if modules == "all-linear" or name.rpartition(".")[2] in QUERIES_AND_VALUES]
    if not adapted:
        raise ConfigError("its attention has no layers of the usual names, which PEFT adapts: say --lora-modules all-linear")
    if quantize != "none":
        model.float()
    for name, parent, layer in found:
        kept = NF4Linear(layer, computes) if quantize != "none" and isinstance(layer, nn.Linear) else layer
        made = Adapted(kept, *_sizes(layer), rank, dtype) if name in adapted else kept
        setattr(parent, name.rpartition(".")[2], made)
    return model


def _linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Each with its name and the module that it is in; not the output, which PEFT and bitsandbytes leave alone."""
    named: Any = getattr(model, "get_output_embeddings", None)
    output = named() if named is not None else None
    for name, module in list(model.named_modules()):
        is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"  # GPT-2's in transformers
        if is_linear and module is not output and name.rpartition(".")[2] not in _NOT_ADAPTED:
            yield name, model.get_submodule(name.rpartition(".")[0]), module


def _sizes(layer: nn.Module) -> tuple[int, int]:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return (weight.shape[1], weight.shape[0]) if isinstance(layer, nn.Linear) else (weight.shape[0], weight.shape[1])


class Adapted(nn.Module):
    """A frozen layer, and what is trained beside it."""

    def __init__(self, frozen: nn.Module, inputs: int, outputs: int, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(inputs, rank, bias=False, dtype=dtype, device="meta")
        self.up = nn.Linear(rank, outputs, bias=False, dtype=dtype, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(x)
        kind, is_cast = out.dtype, not torch.is_autocast_enabled("cuda")
        if isinstance(self.frozen, NF4Linear):
            out = out.clone()  # as PEFT does for weights in four bits
        else:
            is_cast = True
        given = x.to(self.down.weight.dtype) if is_cast else x
        added: Tensor = self.up(self.down(given)) * 1.0
        return (out + added).to(kind)


class NF4Linear(nn.Module):
    """A frozen linear layer in four bits, whose scales are kept in eight."""

    scales: Tensor
    offset: Tensor

    def __init__(self, layer: nn.Linear, computes: torch.dtype) -> None:
        super().__init__()
        self.shape, self.computes = layer.weight.shape, computes
        numbers = layer.weight.numel()
        scales = -(-numbers // _BLOCK)
        with torch.device("meta"):
            self.packed = nn.Parameter(torch.empty(-(-numbers // 2), 1, dtype=torch.uint8), requires_grad=False)
            self.register_buffer("scales", torch.empty(scales, dtype=torch.uint8))
            self.register_buffer("codes", torch.empty(16))
            self.register_buffer("offset", torch.empty(()))
            self.register_buffer("outer_scales", torch.empty(-(-scales // _OUTER_BLOCK)))
            self.register_buffer("outer_codes", torch.empty(256))
            self.bias = None if layer.bias is None else nn.Parameter(torch.empty_like(layer.bias), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(self.computes)
        out: Tensor = _ProductOfFourBits.apply(x.to(self.computes), self, bias)  # type: ignore[no-untyped-call]
        return out.to(x.dtype)

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The weights in a type that products take. A few more bytes live while they are made: their scales, twice."""
        scales = self.scales.to(torch.float32)
        scales = scales + self.offset
        made = torch.empty(self.shape, dtype=dtype, device=self.packed.device)
        made.view(-1, 2).copy_(self.packed)
        return made


class _ProductOfFourBits(torch.autograd.Function):
    """Weights are whole for one product at a time: once forward, once backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: NF4Linear, bias: Tensor | None) -> Tensor:
        ctx.layer = layer
        return F.linear(x, layer.whole(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        gradient = gradients[0]
        return (torch.matmul(gradient, ctx.layer.whole(gradient.dtype)) if ctx.needs_input_grad[0] else None), None, None
