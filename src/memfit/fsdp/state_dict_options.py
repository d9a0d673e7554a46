"""The words for what a checkpoint holds: which kind of state dict, and where its tensors go.

::

    StateDictSettings
    ├── state_dict_type           FULL            LOCAL            SHARDED
    ├── state_dict_config         Full…Config     Local…Config     Sharded…Config
    └── optim_state_dict_config   FullOptim…      LocalOptim…      ShardedOptim…

Members, values, fields, defaults and meanings are those of ``torch.distributed.fsdp``, and ours equal torch's; ``to_torch`` and
``from_torch`` go between the two. Torch takes our ``StateDictType``, but configurations of its own classes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from torch.distributed import fsdp as torch_fsdp

from memfit.errors import ConfigError
from memfit.fsdp.words import Settings, Word


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
