"""Everything that ``shard`` can be asked for, refused when built where the engine cannot do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from torch.distributed.fsdp import MixedPrecisionPolicy

from memfit.engines import find_engine
from memfit.errors import ConfigError
from memfit.fsdp.checkpointing import Checkpointing, check_checkpointing
from memfit.fsdp.meshes import Mesh
from memfit.fsdp.sharding_options import (
    BackwardPrefetch,
    CPUOffload,
    Engine,
    MixedPrecision,
    ShardingStrategy,
    as_mixed_precision,
    read_offload,
    read_precision,
)
from memfit.fsdp.units import Units

Word = TypeVar("Word", bound=Enum)


@dataclass(frozen=True, kw_only=True)
class ShardConfig:
    """How a model is to be sharded. Words are also taken as text, ``strategy="full_shard"``, and as torch's own."""

    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD
    engine: Engine = None  # type: ignore[assignment]
    """Left out: FSDP2, or DDP for NO_SHARD."""
    units: Units = None
    """What is gathered together: module classes or their names, the fewest parameters of a unit, a policy, or ``None`` for the
    repeated blocks of the model's largest list. The model itself is always one more, for what is left."""
    mesh: Mesh = None
    """The ranks: a mesh, its shape, or ``None`` for the whole world; two axes, (replicas, ranks that shard), for hybrids."""
    mixed_precision: MixedPrecision | MixedPrecisionPolicy = MixedPrecision()
    """Torch's ``MixedPrecisionPolicy`` is handed to FSDP2 as it is, for every unit and the model."""
    backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE
    cpu_offload: CPUOffload = CPUOffload()
    checkpointing: Checkpointing = None
    """``"full"``: a unit's activations are computed again in backward. ``"selective"``: all but the outputs of matrix products,
    convolutions and attention. A policy: as torch's ``create_selective_checkpoint_contexts`` takes it. A ``memfit.Plan``: what it
    says for each of its own units."""
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Passed on to ``fully_shard``, ``FullyShardedDataParallel`` or ``DistributedDataParallel`` as they are."""

    def __post_init__(self) -> None:
        self._set("strategy", _word(ShardingStrategy, self.strategy))
        self._set("engine", _word(Engine, self.engine or self.strategy.row.engine))
        self._set("backward_prefetch", _word(BackwardPrefetch, self.backward_prefetch) if self.backward_prefetch else None)
        self._set("mixed_precision", read_precision(self.mixed_precision))
        self._set("cpu_offload", read_offload(self.cpu_offload))
        self._set("engine_options", dict(self.engine_options or {}))
        check_checkpointing(self.checkpointing)
        for problem in find_engine(self.engine).refused(self):
            raise ConfigError(problem)

    @property
    def precision_words(self) -> MixedPrecision:
        """``mixed_precision``, also where it is torch's ``MixedPrecisionPolicy``."""
        return as_mixed_precision(self.mixed_precision)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _word(kind: type[Word], given: Word | str) -> Word:
    """The member of an enumeration, also by its value: ``"full_shard"``."""
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(repr(getattr(each, "text", each.value)) for each in kind)
        raise ConfigError(f"{given!r} is not a {kind.__name__}: use one of {known}") from None
