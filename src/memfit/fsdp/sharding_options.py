"""The words for how a model is sharded: strategy, prefetch, precision, offload, engine.

Fields, defaults and meanings are those of ``torch.distributed.fsdp``; ``to_torch`` and ``from_torch`` go between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Self

import torch
from torch import nn
from torch.distributed import fsdp as torch_fsdp
from torch.nn.modules.batchnorm import _BatchNorm

from memfit import choices
from memfit.errors import ConfigError


class Engine(StrEnum):
    """Which part of torch does the work."""

    FSDP2 = "fsdp2"
    """``fully_shard``: each parameter is a DTensor of its own."""
    FSDP1 = "fsdp1"
    """``FullyShardedDataParallel``: the parameters of a unit are one flat tensor."""
    DDP = "ddp"
    """``DistributedDataParallel``: every rank holds the whole model."""


class ShardingStrategy(Enum):
    """What is split over the ranks, and when it is whole."""

    FULL_SHARD = "full_shard"
    """Parameters, gradients and optimizer state are split; a unit's parameters are whole only while it computes."""
    SHARD_GRAD_OP = "shard_grad_op"
    """As FULL_SHARD, but parameters stay whole from forward to backward: one all-gather less, all units whole at once."""
    NO_SHARD = "no_shard"
    """Every rank holds everything; gradients are all-reduced."""
    HYBRID_SHARD = "hybrid_shard"
    """FULL_SHARD within a node, replicated over nodes."""
    _HYBRID_SHARD_ZERO2 = "hybrid_shard_zero2"
    """SHARD_GRAD_OP within a node, replicated over nodes."""

    @property
    def is_hybrid(self) -> bool:
        return self.row.split is choices.Split.NODE

    @property
    def reshards_after_forward(self) -> bool:
        """Are parameters given back between forward and backward?"""
        return self.row.reshards

    @property
    def row(self) -> choices.Strategy:
        """What else is known of it."""
        return choices.STRATEGIES[self.value]

    def to_torch(self) -> torch_fsdp.ShardingStrategy:
        return torch_fsdp.ShardingStrategy[self.name]

    @classmethod
    def from_torch(cls, theirs: torch_fsdp.ShardingStrategy) -> Self:
        return cls[theirs.name]


class BackwardPrefetch(Enum):
    """When backward asks for the parameters of the unit that comes next. ``None`` in its place: when they are needed."""

    BACKWARD_PRE = "backward_pre"
    """Before this unit's gradients are computed: most overlap, two units whole at once."""
    BACKWARD_POST = "backward_post"
    """After them, when this unit's parameters are gone and its gradients are about to be reduced."""

    def to_torch(self) -> torch_fsdp.BackwardPrefetch:
        return torch_fsdp.BackwardPrefetch[self.name]

    @classmethod
    def from_torch(cls, theirs: torch_fsdp.BackwardPrefetch) -> Self:
        return cls[theirs.name]


@dataclass(frozen=True)
class MixedPrecision:
    """In which types a sharded model computes and communicates; sharded parameters keep their own."""

    param_dtype: torch.dtype | None = None
    """Of parameters while they are whole, and so of the computation. ``None``: as they are."""
    reduce_dtype: torch.dtype | None = None
    """In which gradients are reduced. ``None``: in ``param_dtype``."""
    buffer_dtype: torch.dtype | None = None
    """What buffers are cast to, for good. ``None``: as they are."""
    keep_low_precision_grads: bool = False
    """Leave sharded gradients in the type they were reduced in, for an optimizer that can use them."""
    cast_forward_inputs: bool = False
    """Cast what every unit's forward is given to ``param_dtype``."""
    cast_root_forward_inputs: bool = True
    """Cast what the model's forward is given to ``param_dtype``, whatever ``cast_forward_inputs`` says."""
    module_classes_to_ignore: Sequence[type[nn.Module]] = (_BatchNorm,)
    """Modules of these classes become units of their own that compute in full precision."""

    def __post_init__(self) -> None:
        for name in ("param_dtype", "reduce_dtype", "buffer_dtype"):
            _check_dtype(name, getattr(self, name))
        object.__setattr__(self, "module_classes_to_ignore", tuple(self.module_classes_to_ignore))
        for found in self.module_classes_to_ignore:
            if not (isinstance(found, type) and issubclass(found, nn.Module)):
                raise ConfigError(f"module_classes_to_ignore takes classes of modules, not {found!r}")
        if self.keep_low_precision_grads and self.param_dtype is None and self.reduce_dtype is None:
            raise ConfigError(
                "keep_low_precision_grads=True with neither param_dtype nor reduce_dtype: no gradient would be in low precision. "
                "Set reduce_dtype, for instance to torch.bfloat16."
            )

    def to_torch(self) -> torch_fsdp.MixedPrecision:
        return torch_fsdp.MixedPrecision(
            param_dtype=self.param_dtype,
            reduce_dtype=self.reduce_dtype,
            buffer_dtype=self.buffer_dtype,
            keep_low_precision_grads=self.keep_low_precision_grads,
            cast_forward_inputs=self.cast_forward_inputs,
            cast_root_forward_inputs=self.cast_root_forward_inputs,
            _module_classes_to_ignore=self.module_classes_to_ignore,
        )

    @classmethod
    def from_torch(cls, theirs: torch_fsdp.MixedPrecision) -> Self:
        return cls(
            param_dtype=theirs.param_dtype,
            reduce_dtype=theirs.reduce_dtype,
            buffer_dtype=theirs.buffer_dtype,
            keep_low_precision_grads=theirs.keep_low_precision_grads,
            cast_forward_inputs=theirs.cast_forward_inputs,
            cast_root_forward_inputs=theirs.cast_root_forward_inputs,
            module_classes_to_ignore=theirs._module_classes_to_ignore,
        )


@dataclass(frozen=True)
class CPUOffload:
    """What lives in host memory."""

    offload_params: bool = False
    """Sharded parameters, and with them gradients and optimizer state: the optimizer steps on the CPU."""

    def to_torch(self) -> torch_fsdp.CPUOffload:
        return torch_fsdp.CPUOffload(offload_params=self.offload_params)

    @classmethod
    def from_torch(cls, theirs: torch_fsdp.CPUOffload) -> Self:
        return cls(offload_params=theirs.offload_params)


def _check_dtype(name: str, dtype: Any) -> None:
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        return
    raise ConfigError(f"{name} takes a floating-point dtype such as torch.bfloat16, or None, not {dtype!r}")
