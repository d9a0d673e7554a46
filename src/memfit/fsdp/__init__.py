"""One vocabulary over torch's engines.

::

    shard(model, ShardingStrategy.FULL_SHARD, mixed_precision=MixedPrecision(...), ...)
        │
        ├─ config.py          all options together, refused where the engine cannot do it    sharding_options.py: each of them
        │                                                                                    words.py: what makes them torch's
        │  sharding.py        applies them, in order
        ├─ meshes.py          over which ranks
        ├─ units.py           what is gathered and given back together
        ├─ checkpointing.py   what is computed again instead of kept
        └─ memfit.engines     the engine wraps it ──> a plain torch module

    state_dict(model, optimizer, StateDictSettings(...))                                     state_dict_options.py
        └─ state_dicts.py     torch's distributed checkpoint ──> {"model": ..., "optimizer": ...}

The words are ``torch.distributed.fsdp``'s own, with the same values, fields, defaults and meanings. They equal
torch's own, and torch takes them. What torch does not promise is reached through ``memfit.torch_compat``.
"""

from memfit.fsdp.config import ShardConfig
from memfit.fsdp.sharding import shard
from memfit.fsdp.sharding_options import BackwardPrefetch, CPUOffload, Engine, MixedPrecision, ShardingStrategy
from memfit.fsdp.state_dict_options import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    OptimStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from memfit.fsdp.state_dicts import load_state_dict, state_dict

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
