"""Processes that a script starts for its ranks: one of them is this one, the others are not there.

::

    torch.multiprocessing.spawn(function, ...)      the function of this rank, called here
    multiprocessing.Process(target=function)        the same, where the function makes a process group: then it is a rank's.
                                                    All others (workers of data loaders, of pools) are started as ever
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, Final

import torch

from memfit.phantom.distributed.environment import RankInfo
from memfit.torch_compat.patches import Patches

_MAKES_GROUPS: Final = frozenset(("init_process_group", "init_device_mesh"))
_DEEPEST: Final = 4
"""How many calls below its target a process is looked at."""


def install(patches: Patches, world: RankInfo) -> None:
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
