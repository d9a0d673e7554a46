"""What a launcher tells the processes that it starts, and processes that a script starts for its ranks itself.

::

    torchrun, accelerate launch, --nproc     RANK, LOCAL_RANK, WORLD_SIZE, ... are set
    python train.py                          they are not set, as in reality: a script that asks whether it was launched is told no.
                                             One that takes them for granted (os.environ["RANK"]) is the only process of its world

The difference matters: with RANK set, many scripts wrap their model in DistributedDataParallel, whose buckets take memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from types import CodeType, FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch

from memfit.errors import ConfigError
from memfit.hardware import GPUS_PER_NODE, MOST_GPUS
from memfit.torch_compat.patches import Patches

if TYPE_CHECKING:
    _Environ = os._Environ[str]
else:
    _Environ = os._Environ


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """The process that is predicted, among those that are not there."""

    world_size: int = 1
    rank: int = 0
    processes_per_node: int = GPUS_PER_NODE
    """At most; a smaller world is on one node."""
    is_launched: bool = False
    """Did a launcher start it? A world of several processes has one in any case."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size or self.processes_per_node < 1:
            raise ConfigError(
                f"cannot predict rank {self.rank} of {self.world_size} processes, {self.processes_per_node} on a node: at least "
                "one process, and a rank below their number"
            )
        if self.world_size > MOST_GPUS:
            raise ConfigError(f"cannot predict one of {self.world_size} processes: at most {MOST_GPUS:,} are reckoned with")

    @property
    def has_launcher(self) -> bool:
        return self.is_launched or self.world_size > 1

    @property
    def local_rank(self) -> int:
        return self.rank % self.processes_per_node

    @property
    def local_world_size(self) -> int:
        return min(self.world_size, self.processes_per_node)

    def variables(self) -> dict[str, str]:
        """As torchrun sets them."""
        node, num_nodes = self.rank // self.processes_per_node, -(-self.world_size // self.processes_per_node)
        settings = {
            "RANK": self.rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "GROUP_RANK": node,
            "GROUP_WORLD_SIZE": num_nodes,
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.world_size,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "memfit",
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
        }
        return {name: str(value) for name, value in settings.items()}


def install(patches: Patches, world: RankInfo) -> None:
    if world.has_launcher:
        for name, value in world.variables().items():
            patches.replace_item(os.environ, name, value)
    else:
        _answer_who_insists(patches, world.variables())


def _answer_who_insists(patches: Patches, variables: dict[str, str]) -> None:
    """``os.environ["RANK"]`` has an answer, where a real run would end with a KeyError; to ``get`` and ``in`` it is not there."""
    kind = type(os.environ)

    class Environ(_Environ):
        def __getitem__(self, name: str) -> str:
            try:
                return super().__getitem__(name)
            except KeyError:
                if name not in variables:
                    raise
                return variables[name]

        def __contains__(self, name: object) -> bool:
            try:
                super().__getitem__(name)  # type: ignore[index]
            except (KeyError, TypeError):
                return False
            return True

        def get(self, name: str, default: Any = None) -> Any:
            return super().__getitem__(name) if name in self else default

        def pop(self, name: str, *default: Any) -> Any:
            return super().pop(name, *default) if name in self or not default else default[0]

    os.environ.__class__ = Environ
    patches.finally_call(lambda: setattr(os.environ, "__class__", kind))


# -- processes that a script starts for its ranks: one of them is this one, the others are not there -------------------------
#
# ::
#
#     torch.multiprocessing.spawn(function, ...)      the function of this rank, called here
#     multiprocessing.Process(target=function)        the same, where the function makes a process group: then it is a rank's.
#                                                     All others (workers of data loaders, of pools) are started as ever

_MAKES_GROUPS: Final = frozenset(("init_process_group", "init_device_mesh"))
_DEEPEST: Final = 4
"""How many calls below its target a process is looked at."""


def install_processes(patches: Patches, world: RankInfo) -> None:
    def spawn(fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True, *others: Any, **kwargs: Any) -> Any:
        fn(world.local_rank if nprocs > 1 else 0, *args)
        return None if join else SimpleNamespace(join=lambda *args, **kwargs: True, processes=[], pids=list)

    for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        patches.replace(module, "spawn", spawn)
    _follow_ranks(patches, world)


def _follow_ranks(patches: Patches, world: RankInfo) -> None:
    start, join, is_alive = BaseProcess.start, BaseProcess.join, BaseProcess.is_alive
    exitcode = BaseProcess.exitcode
    ranks: list[BaseProcess] = []

    def start_or_call(process: BaseProcess) -> None:
        if not is_rank(process):
            return start(process)
        ranks.append(process)
        if len(ranks) - 1 == world.local_rank:
            process.run()
        return None

    def is_ours(process: BaseProcess) -> bool:
        return any(process is rank for rank in ranks)

    def join_unless_ours(process: BaseProcess, timeout: float | None = None) -> None:
        if not is_ours(process):
            join(process, timeout)

    patches.replace(BaseProcess, "start", start_or_call)
    patches.replace(BaseProcess, "join", join_unless_ours)
    patches.replace(BaseProcess, "is_alive", lambda process: not is_ours(process) and is_alive(process))
    patches.replace(BaseProcess, "exitcode", property(lambda process: 0 if is_ours(process) else exitcode.__get__(process)))


def is_rank(process: BaseProcess) -> bool:
    """Does what the process is to run make a process group, itself or in the functions of the script that it calls?"""
    target = getattr(process, "_target", None)
    begun = [target] if target is not None else [type(process).run]
    arguments = [*getattr(process, "_args", ()), *getattr(process, "_kwargs", {}).values()]
    functions = [getattr(each, "__func__", each) for each in (*begun, *arguments)]
    return any(_makes_groups(function, _DEEPEST) for function in functions if isinstance(function, FunctionType))


def _makes_groups(function: FunctionType, depth: int) -> bool:
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    if names & _MAKES_GROUPS:
        return True
    called = (function.__globals__.get(name) for name in names)
    return depth > 1 and any(
        _makes_groups(other, depth - 1)
        for other in called
        if isinstance(other, FunctionType) and other is not function and other.__module__ == function.__module__
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
