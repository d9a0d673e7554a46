"""Process groups without peers, DDP's buckets, DTensor's propagation of shapes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from memfit.errors import UnsupportedTorchError
from memfit.torch_compat.versions import need, need_in

bucket_assignment: Callable[..., Any] = need(torch.distributed, "_compute_bucket_assignment_by_size")
"""How DDP puts gradients into buckets; it needs sizes only."""

take_tensors: Callable[..., Any] = need(torch._utils, "_take_tensors")
"""Tensors of one type in chunks of a size, as ``DataParallel`` copies them."""
flatten_dense_tensors: Callable[..., Any] = need(torch._utils, "_flatten_dense_tensors")
unflatten_dense_tensors: Callable[..., Any] = need(torch._utils, "_unflatten_dense_tensors")

ProcessGroup: Any = need(torch.distributed, "ProcessGroup")
FakeWork: Any = need(torch._C._distributed_c10d, "FakeWork")
"""The handle that the fake process group gives; its ``unbox`` also takes any other group's."""

CoalescingManager: Any = need(torch.distributed.distributed_c10d, "_CoalescingManager")
"""Waits for collectives that were issued together."""

COALESCED = (
    "c10d::allreduce_coalesced_",
    "c10d::allgather_coalesced_",
    "c10d::allgather_into_tensor_coalesced_",
    "c10d::reduce_scatter_tensor_coalesced_",
)
"""The operators that issue them; unlike single collectives, torch gives them no shapes."""

resolve_group: Callable[[str], Any] = need(torch._C._distributed_c10d, "_resolve_process_group")
"""A process group by its name."""

FUNCTIONAL_COLLECTIVES = "torch.distributed._functional_collectives"
"""The module with collectives that give their result, and have gradients."""

_REMEMBER_MESHES = ("torch.distributed.tensor._redistribute", "torch.distributed.tensor._collective_utils")
"""Modules with functions that remember what they have said about a mesh."""

SHARDING_PROPAGATION = "torch.distributed.tensor._sharding_prop"
"""The module in which DTensor learns shapes by running operators on global ones."""

DTENSOR_FUNCTIONS = {
    "torch.distributed.tensor._redistribute": ("Redistribute",),
    "torch.distributed.tensor._api": ("_ToTorchTensor", "_FromTorchTensor"),
}
"""DTensor's functions with a gradient, which run in Python: laying out anew, and between a tensor and this rank's part of it."""

REDISTRIBUTE_LOCAL = "redistribute_local_tensor"
"""What lays out this rank's part anew."""

REDISTRIBUTING = (
    "torch.distributed.tensor._redistribute",
    "torch.distributed.tensor._dispatch",
    "torch.distributed.tensor._api",
)
"""The modules that may have it under this name."""


def need_everything() -> None:
    """Asks for each part that this file uses only where it is wanted."""
    for module, names in DTENSOR_FUNCTIONS.items():
        need_in(module, *names)
    need_in(REDISTRIBUTING[0], REDISTRIBUTE_LOCAL)
    need_in(SHARDING_PROPAGATION, "ShardingPropagator._propagate_tensor_meta_non_cached")
    need_in("torch.distributed.tensor", "DTensor._op_dispatcher")
    need_in("torch._C", "_clear_DTensor_sharding_propagator_cache")
    need_in(FUNCTIONAL_COLLECTIVES, "_are_we_tracing", "all_to_all_single_autograd")
    need_in("torch.testing._internal.distributed.fake_pg", "FakeStore")


def exchange_rows(rows: torch.Tensor, received_from: list[int], sent_to: list[int], group: Any) -> torch.Tensor:
    """An all-to-all of rows, with a gradient: what the other ranks sent. Torch has it in a module that it calls private."""
    module = importlib.import_module(FUNCTIONAL_COLLECTIVES)
    arrived: torch.Tensor = need(module, "all_to_all_single_autograd")(rows, received_from, sent_to, group)
    return arrived


def sharding_propagation() -> Any:
    """That module, imported."""
    from torch.distributed.tensor import _sharding_prop

    return _sharding_prop


def forget_meshes() -> None:
    """Empties what DTensor remembers of meshes. It takes two for one if they have the same shape, whatever rank saw them: groups
    of a rank that was predicted before would be asked for."""
    # What torch has for this is in a module that imports its trackers, and warns where Triton is missing.
    from torch.distributed.tensor import DTensor

    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    need(torch._C, "_clear_DTensor_sharding_propagator_cache")()
    for name in _REMEMBER_MESHES:
        for value in vars(importlib.import_module(name)).values():
            getattr(value, "cache_clear", lambda: None)()


def fake_store() -> Any:
    """The store of torch's fake process group, whose collectives need no peers."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def collectives_that_hand_on() -> list[Any]:
    """Operators that give back what a collective has received, now or later."""
    import torch.distributed._functional_collectives  # registers the second, where there is one

    names, operators = ("wait_tensor", "_wrap_tensor_autograd"), torch.ops._c10d_functional
    return [getattr(operators, name).default for name in names if hasattr(operators, name)]


def result_by_shape() -> list[Any]:
    """Collectives whose result follows from the shape of what they are given and from their group, and waiting for them."""
    names, operators = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce", "wait_tensor"), torch.ops._c10d_functional
    return [getattr(operators, name).default for name in names if hasattr(operators, name)]


def modules_that_ask_for_tracing() -> list[Any]:
    """Parts of torch that take fake tensors for a compiler at work, and then keep no caches and wait for every collective."""
    import torch.distributed.tensor  # whatever asks must have its own reference by now, or it would keep ours

    named = [module for name, module in list(sys.modules.items()) if name.startswith("torch.distributed")]
    found = [module for module in named if "_are_we_tracing" in vars(module)]
    if not found:
        raise UnsupportedTorchError("torch.distributed._functional_collectives._are_we_tracing", torch.__version__)
    return found


def module_that_numbers_collectives() -> Any:
    """What runs collectives of tensors without data: its ``generate_unique_id`` draws the number of each with ``random``.

    ``None`` for a torch without it.
    """
    module = importlib.import_module("torch.distributed._meta_registrations")
    return module if hasattr(module, "generate_unique_id") else None


def bucket_sizes(module: Any) -> list[int]:
    """The bytes of each bucket that DDP has made for a module by now; none where it is not DDP's."""
    if not isinstance(module, torch.nn.parallel.DistributedDataParallel):
        return []
    said = need(module, "_get_ddp_logging_data")()
    texts = said.get("rebuilt_bucket_sizes") or said.get("bucket_sizes") or ""
    return [int(text) for text in texts.replace(",", " ").split() if text.isdecimal()]


def parts_of_distributed(tensor: torch.Tensor) -> tuple[torch.Tensor, Any] | None:
    """This rank's part of a distributed tensor, and how it is a part of it; ``None`` for other tensors."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or type(tensor) is not module.DTensor:
        return None
    return tensor._local_tensor, tensor._spec  # type: ignore[attr-defined]


def distributed(part: torch.Tensor, spec: Any) -> torch.Tensor:
    """A distributed tensor without a gradient of which this is the rank's part."""
    from torch.distributed.tensor import DTensor

    return DTensor(part, spec, requires_grad=False)
