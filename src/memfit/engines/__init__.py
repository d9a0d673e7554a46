"""What wraps a model: one class for each engine says all that the rest of memfit asks of it.

::

    engine.py      Engine: phases and their price on the host, categories, hooks, what bounds a search, what is refused
    registry.py    ENGINES, by name
    ├─ fsdp2/      fully_shard
    ├─ fsdp1/      FullyShardedDataParallel
    ├─ ddp/        DistributedDataParallel
    ├─ deepspeed/  ZeRO, which scripts apply
    └─ megatron/   Megatron-core, which scripts apply

An engine's own file imports no torch, so that flags, comparisons and searches can ask it.
"""

from memfit.engines.engine import Engine, HostTask, Learner, Reporter, UnitTensor
from memfit.engines.registry import ENGINES, find_engine, registered

__all__ = ["ENGINES", "Engine", "HostTask", "Learner", "Reporter", "UnitTensor", "find_engine", "registered"]

__not_compiled__ = True
