"""The words for how a model is sharded: strategy, prefetch, precision, offload, engine.

Members, values, fields, defaults and meanings are those of ``torch.distributed.fsdp``: ours equal torch's, and torch takes them.
``to_torch`` and ``from_torch`` go between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import nn
from torch.distributed import fsdp as torch_fsdp
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.modules.batchnorm import _BatchNorm

from memfit import choices
from memfit.engines import ENGINES
from memfit.errors import ConfigError
from memfit.fsdp.words import Settings, Word


class Engine(StrEnum):
    """Which part of torch does the work, by its name in ``memfit.engines``. An engine registered there is a member, too."""

    FSDP2 = "fsdp2"
    """``fully_shard``: each parameter is a DTensor of its own."""
    FSDP1 = "fsdp1"
    """``FullyShardedDataParallel``: the parameters of a unit are one flat tensor."""
    DDP = "ddp"
    """``DistributedDataParallel``: every rank holds the whole model."""

    @classmethod
    def _missing_(cls, value: object) -> Engine | None:
        if value not in ENGINES or not ENGINES[str(value)].is_applied:
            return None
        member = str.__new__(cls, value)
        member._name_, member._value_ = str(value).upper(), str(value)
        return member


class ShardingStrategy(Word):
    """What is split over the ranks, and when it is whole."""

    FULL_SHARD = torch_fsdp.ShardingStrategy.FULL_SHARD.value
    """Parameters, gradients and optimizer state are split; a unit's parameters are whole only while it computes."""
    SHARD_GRAD_OP = torch_fsdp.ShardingStrategy.SHARD_GRAD_OP.value
    """As FULL_SHARD, but parameters stay whole from forward to backward: one all-gather less, all units whole at once."""
    NO_SHARD = torch_fsdp.ShardingStrategy.NO_SHARD.value
    """Every rank holds everything; gradients are all-reduced."""
    HYBRID_SHARD = torch_fsdp.ShardingStrategy.HYBRID_SHARD.value
    """FULL_SHARD within a node, replicated over nodes."""
    _HYBRID_SHARD_ZERO2 = torch_fsdp.ShardingStrategy._HYBRID_SHARD_ZERO2.value
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
        return choices.STRATEGIES[self.text]


class BackwardPrefetch(Word):
    """When backward asks for the parameters of the unit that comes next. ``None`` in its place: when they are needed."""

    BACKWARD_PRE = torch_fsdp.BackwardPrefetch.BACKWARD_PRE.value
    """Before this unit's gradients are computed: most overlap, two units whole at once."""
    BACKWARD_POST = torch_fsdp.BackwardPrefetch.BACKWARD_POST.value
    """After them, when this unit's parameters are gone and its gradients are about to be reduced."""


@dataclass(frozen=True, init=False, eq=False)
class MixedPrecision(Settings):
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
    """Modules of these classes become units of their own that compute in full precision. Torch writes an underscore before it."""

    def __init__(
        self,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        keep_low_precision_grads: bool = False,
        cast_forward_inputs: bool = False,
        cast_root_forward_inputs: bool = True,
        module_classes_to_ignore: Sequence[type[nn.Module]] | None = None,
        *,
        _module_classes_to_ignore: Sequence[type[nn.Module]] = (_BatchNorm,),
    ) -> None:
        ignored = _module_classes_to_ignore if module_classes_to_ignore is None else module_classes_to_ignore
        given = {
            "param_dtype": param_dtype,
            "reduce_dtype": reduce_dtype,
            "buffer_dtype": buffer_dtype,
            "keep_low_precision_grads": keep_low_precision_grads,
            "cast_forward_inputs": cast_forward_inputs,
            "cast_root_forward_inputs": cast_root_forward_inputs,
            "module_classes_to_ignore": tuple(ignored),
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        for name in ("param_dtype", "reduce_dtype", "buffer_dtype"):
            _check_dtype(name, getattr(self, name))
        for found in self.module_classes_to_ignore:
            if not (isinstance(found, type) and issubclass(found, nn.Module)):
                raise ConfigError(f"module_classes_to_ignore takes classes of modules, not {found!r}")
        if self.keep_low_precision_grads and self.param_dtype is None and self.reduce_dtype is None:
            raise ConfigError(
                "keep_low_precision_grads=True with neither param_dtype nor reduce_dtype: no gradient would be in low precision. "
                "Set reduce_dtype, for instance to torch.bfloat16."
            )

    @property
    def _module_classes_to_ignore(self) -> Sequence[type[nn.Module]]:
        return self.module_classes_to_ignore


def read_precision(given: Any) -> MixedPrecision | MixedPrecisionPolicy:
    """Ours, from ours or torch's for FSDP1; torch's policy for FSDP2 stays as it is; ``None`` is full precision."""
    if given is None:
        return MixedPrecision()
    if isinstance(given, torch_fsdp.MixedPrecision):
        return MixedPrecision.from_torch(given)
    if isinstance(given, MixedPrecision | MixedPrecisionPolicy):
        return given
    raise ConfigError(
        f"mixed_precision takes a MixedPrecision, memfit's or torch's, or torch's MixedPrecisionPolicy, not {given!r}"
    )


def as_mixed_precision(given: MixedPrecision | MixedPrecisionPolicy) -> MixedPrecision:
    """A policy in the words of ``MixedPrecision``: no module is left out, and the model itself is a unit like the others."""
    if isinstance(given, MixedPrecision):
        return given
    casts = given.cast_forward_inputs
    return MixedPrecision(given.param_dtype, given.reduce_dtype, None, False, casts, casts, ())


@dataclass(frozen=True, eq=False)
class CPUOffload(Settings):
    """What lives in host memory."""

    offload_params: bool = False
    """Sharded parameters, and with them gradients and optimizer state: the optimizer steps on the CPU."""


def read_offload(given: Any) -> CPUOffload:
    """Ours, from ours or torch's; ``None`` is none."""
    if given is None:
        return CPUOffload()
    if isinstance(given, torch_fsdp.CPUOffload):
        return CPUOffload.from_torch(given)
    if isinstance(given, CPUOffload):
        return given
    if isinstance(given, torch_fsdp.OffloadPolicy):
        return CPUOffload(offload_params=isinstance(given, torch_fsdp.CPUOffloadPolicy))
    raise ConfigError(f"cpu_offload takes a CPUOffload, memfit's or torch's, or torch's OffloadPolicy, not {given!r}")


def _check_dtype(name: str, dtype: Any) -> None:
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        return
    raise ConfigError(f"{name} takes a floating-point dtype such as torch.bfloat16, or None, not {dtype!r}")
