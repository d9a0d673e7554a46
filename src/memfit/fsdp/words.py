"""FSDP's options. Each is torch's class of the same name, equals it, and is accepted by torch in its place.

::

    Word       members and values of an enumeration of torch's      ShardingStrategy.FULL_SHARD == torch's, ShardingStrategy(1)
    Settings   fields and defaults of a dataclass of torch's         MixedPrecision(...) == torch's

    how a model is sharded      ShardingStrategy, BackwardPrefetch, MixedPrecision, CPUOffload, Engine
    what a checkpoint holds     StateDictSettings
                                ├── state_dict_type           FULL            LOCAL            SHARDED
                                ├── state_dict_config         Full…Config     Local…Config     Sharded…Config
                                └── optim_state_dict_config   FullOptim…      LocalOptim…      ShardedOptim…

``to_torch`` and ``from_torch`` convert. Torch accepts our ``StateDictType``, but only its own classes of state dict configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from typing import Any, Self

import torch
from torch import nn
from torch.distributed import fsdp as torch_fsdp
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.modules.batchnorm import _BatchNorm

from memfit import choices
from memfit.engines import ENGINES
from memfit.errors import ConfigError


class Word(Enum):
    """A member equals torch's member of the same name, as a key of a dictionary too, and is found by its value or its text."""

    @property
    def text(self) -> str:
        """As people write it: ``full_shard``."""
        return self.name.lstrip("_").lower()

    def to_torch(self) -> Any:
        return getattr(torch_fsdp, type(self).__name__)[self.name]

    @classmethod
    def from_torch(cls, theirs: Any) -> Self:
        return cls[theirs.name]

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """``ShardingStrategy("full_shard")``, and torch's own member."""
        is_theirs = isinstance(value, getattr(torch_fsdp, cls.__name__))
        return next((word for word in cls if (word == value if is_theirs else word.text == value)), None)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, getattr(torch_fsdp, type(self).__name__)):
            return bool(self.name == other.name)
        return self is other

    def __hash__(self) -> int:
        return hash(self.name)  # so do torch's


class Settings:
    """Settings equal torch's of the same name if all fields are equal."""

    def to_torch(self) -> Any:
        theirs = getattr(torch_fsdp, type(self).__name__)
        return theirs(**{name: getattr(self, name) for name in _names(theirs)})

    @classmethod
    def from_torch(cls, theirs: Any) -> Self:
        if type(theirs).__name__ != cls.__name__:
            raise ConfigError(f"{cls.__name__}.from_torch takes torch's {cls.__name__}, not {type(theirs).__name__}")
        return cls(**{name: getattr(theirs, name) for name in _names(type(theirs))})

    def __eq__(self, other: object) -> bool:
        theirs = getattr(torch_fsdp, type(self).__name__)
        if type(other) is not type(self) and type(other) is not theirs:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _names(theirs))

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in _names(getattr(torch_fsdp, type(self).__name__))))


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


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


class StateDictType(Word):
    """What a state dict holds of a sharded model."""

    FULL_STATE_DICT = torch_fsdp.StateDictType.FULL_STATE_DICT.value
    """Whole tensors under the names of the unsharded model: any program can read it."""
    LOCAL_STATE_DICT = torch_fsdp.StateDictType.LOCAL_STATE_DICT.value
    """Each rank's flat shards as FSDP1 keeps them: only the same world can read it."""
    SHARDED_STATE_DICT = torch_fsdp.StateDictType.SHARDED_STATE_DICT.value
    """Each rank's part of every tensor, under the names of the unsharded model: any world can read it."""

    @property
    def text(self) -> str:
        """As people write it: ``full``."""
        return super().text.removesuffix("_state_dict")


@dataclass(frozen=True, eq=False)
class StateDictConfig(Settings):
    """Where a model's saved tensors go. Use one of its kinds."""

    offload_to_cpu: bool = False
    """Put them into host memory as they are made."""


@dataclass(frozen=True, eq=False)
class FullStateDictConfig(StateDictConfig):
    """Of FULL_STATE_DICT."""

    rank0_only: bool = False
    """Only rank 0 keeps the tensors; all ranks take part in making them."""


@dataclass(frozen=True, eq=False)
class LocalStateDictConfig(StateDictConfig):
    """Of LOCAL_STATE_DICT."""


@dataclass(frozen=True, eq=False)
class ShardedStateDictConfig(StateDictConfig):
    """Of SHARDED_STATE_DICT."""

    _use_dtensor: bool = False
    """Torch's own, which it sets itself: are shards saved as DTensors?"""


@dataclass(frozen=True, eq=False)
class OptimStateDictConfig(Settings):
    """Where an optimizer's saved tensors go. Use one of its kinds."""

    offload_to_cpu: bool = True
    """Put them into host memory as they are made; torch's default, unlike the model's."""


@dataclass(frozen=True, eq=False)
class FullOptimStateDictConfig(OptimStateDictConfig):
    """Of FULL_STATE_DICT."""

    rank0_only: bool = False
    """Only rank 0 keeps the tensors; all ranks take part in making them."""


@dataclass(frozen=True, eq=False)
class LocalOptimStateDictConfig(OptimStateDictConfig):
    """Of LOCAL_STATE_DICT."""

    offload_to_cpu: bool = False
    """Put them into host memory."""


@dataclass(frozen=True, eq=False)
class ShardedOptimStateDictConfig(OptimStateDictConfig):
    """Of SHARDED_STATE_DICT."""

    _use_dtensor: bool = False
    """Torch's own, which it sets itself: are shards saved as DTensors?"""


_KINDS: dict[StateDictType, tuple[type[StateDictConfig], type[OptimStateDictConfig]]] = {
    StateDictType.FULL_STATE_DICT: (FullStateDictConfig, FullOptimStateDictConfig),
    StateDictType.LOCAL_STATE_DICT: (LocalStateDictConfig, LocalOptimStateDictConfig),
    StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig),
}


@dataclass(frozen=True, eq=False)
class StateDictSettings(Settings):
    """A kind of state dict, with its configuration for the model and for the optimizer."""

    state_dict_type: StateDictType = StateDictType.FULL_STATE_DICT
    state_dict_config: StateDictConfig = None  # type: ignore[assignment]
    """Left out: the kind's own, with its defaults."""
    optim_state_dict_config: OptimStateDictConfig = None  # type: ignore[assignment]
    """Left out: the kind's own, with its defaults."""

    def __post_init__(self) -> None:
        if not isinstance(self.state_dict_type, StateDictType):
            raise ConfigError(f"state_dict_type takes a StateDictType, not {self.state_dict_type!r}")
        names = ("state_dict_config", "optim_state_dict_config")
        for name, kind in zip(names, _KINDS[self.state_dict_type], strict=True):
            given = getattr(self, name)
            if given is None:
                object.__setattr__(self, name, kind())
            elif type(given) is not kind:
                raise ConfigError(
                    f"{self.state_dict_type.name} goes with {kind.__name__}, not with {type(given).__name__} as {name}"
                )

    def to_torch(self) -> Any:
        return torch_fsdp.StateDictSettings(
            self.state_dict_type.to_torch(), self.state_dict_config.to_torch(), self.optim_state_dict_config.to_torch()
        )

    @classmethod
    def from_torch(cls, theirs: Any) -> Self:
        kind = StateDictType.from_torch(theirs.state_dict_type)
        ours, optimizers = _KINDS[kind]
        return cls(kind, ours.from_torch(theirs.state_dict_config), optimizers.from_torch(theirs.optim_state_dict_config))
