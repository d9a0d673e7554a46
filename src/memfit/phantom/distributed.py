"""One rank of a world of processes that are not there.

``init_process_group`` of any backend makes torch's fake one: collectives give back tensors of the right shape at once. Everything
else (meshes, FSDP, tensor parallelism) is the installed torch's own code, run as this rank would run it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from memfit.phantom.replacing import Replacements
from memfit.phantom.torch_private import fake_store, modules_that_ask_for_tracing

GPUS_A_NODE = 8


def local_rank(rank: int) -> int:
    return rank % GPUS_A_NODE


def install(replacements: Replacements, world_size: int, rank: int) -> None:
    _set_environment(replacements, world_size, rank)
    replacements.finally_call(_leave)
    for module in modules_that_ask_for_tracing():
        replacements.attribute(module, "_are_we_tracing", lambda: False)
    init = dist.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        init("fake", store=fake_store(), rank=rank, world_size=world_size)

    for module in (dist, dist.distributed_c10d):
        replacements.attribute(module, "init_process_group", init_process_group)
        for name, stand_in in _object_collectives(world_size).items():
            replacements.attribute(module, name, stand_in)


def _set_environment(replacements: Replacements, world_size: int, rank: int) -> None:
    settings = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank(rank),
        "LOCAL_WORLD_SIZE": min(world_size, GPUS_A_NODE),
        "GROUP_RANK": rank // GPUS_A_NODE,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }
    if world_size > 1:
        for name, value in settings.items():
            replacements.item(os.environ, name, str(value))


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _object_collectives(world_size: int) -> dict[str, Callable[..., Any]]:
    """Collectives of Python objects: every other rank has what this one has."""

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast_object_list(object_list: list[Any], *args: Any, **kwargs: Any) -> None: ...

    def scatter_object_list(output: list[Any], given: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        if given:
            output[0] = given[0]

    def barrier(*args: Any, **kwargs: Any) -> None: ...

    return {
        "all_gather_object": all_gather_object,
        "gather_object": gather_object,
        "broadcast_object_list": broadcast_object_list,
        "scatter_object_list": scatter_object_list,
        "barrier": barrier,
        "monitored_barrier": barrier,
    }
