"""One vocabulary over torch's engines.

::

    shard(model, ShardingStrategy.FULL_SHARD, mixed_precision=MixedPrecision(...), ...)
        │
        ├─ sharding.py        ShardConfig: all options together, refused where the engine cannot do it; applied in order
        ├─ words.py           each option, named and valued as in torch
        │                     over the ranks of a mesh
        ├─ units.py           what is gathered and freed together, and what is recomputed instead of kept
        └─ memfit.engines     the engine wraps it ──> a plain torch module

    state_dict(model, optimizer, StateDictSettings(...))
        └─ state_dicts.py     torch's distributed checkpoint ──> {"model": ..., "optimizer": ...}

The words are ``torch.distributed.fsdp``'s own, with the same values, fields, defaults and meanings. They equal
torch's own, and torch takes them. What torch does not promise is reached through ``memfit.torch_compat``.
"""

from memfit.fsdp.sharding import ShardConfig, shard
from memfit.fsdp.state_dicts import load_state_dict, state_dict
from memfit.fsdp.words import (
    BackwardPrefetch,
    CPUOffload,
    Engine,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    OptimStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)

__all__ = [
    "BackwardPrefetch",
    "CPUOffload",
    "Engine",
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "LocalOptimStateDictConfig",
    "LocalStateDictConfig",
    "MixedPrecision",
    "OptimStateDictConfig",
    "ShardConfig",
    "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig",
    "ShardingStrategy",
    "StateDictConfig",
    "StateDictSettings",
    "StateDictType",
    "load_state_dict",
    "shard",
    "state_dict",
]
