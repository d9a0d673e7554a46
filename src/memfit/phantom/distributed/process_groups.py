"""One rank of a world of processes that are not there.

::

    init_process_group, new_group, ...     torch's fake groups: collectives give back tensors of the right shape at once
    get_backend, is_nccl_available, ...    what they would be on the named GPU
    all_gather_object, ...                 every other rank has what this one has

Everything else (meshes, FSDP, tensor parallelism) is the installed torch's own code, run as this rank would run it.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Set
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist

from memfit.errors import NeedsGpuError
from memfit.phantom.clock.communication import Communication
from memfit.phantom.distributed import environment
from memfit.phantom.distributed.environment import RankInfo
from memfit.phantom.values import host_data, routing
from memfit.phantom.values.answers import Values
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.dispatch import has_kernel
from memfit.torch_compat.distributed import (
    COALESCED,
    CoalescingManager,
    FakeWork,
    fake_store,
    module_that_numbers_collectives,
    modules_that_ask_for_tracing,
)
from memfit.torch_compat.patches import Patches

_REDUCING = ("all_reduce", "reduce")
_GATHERING = ("all_gather", "all_gather_into_tensor", "all_gather_single")
_EXCHANGING = ("all_to_all_single",)
_OTHERS = ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "all_to_all")
"""The first argument of each receives the result."""

_LAUNCH_IT = (
    "Let a launcher start the ranks (memfit run torchrun --nproc-per-node 8 train.py), or start them with torch.multiprocessing"
    ".spawn, and predict one of them."
)


def install(
    patches: Patches, values: Values, world: RankInfo, learn_world_size: Callable[[int], None], communication: Communication
) -> None:
    """``learn_world_size`` is told how large the world is that the run makes; ``communication`` knows when collectives are over."""
    patches.finally_call(_leave)
    for module in modules_that_ask_for_tracing():
        patches.replace(module, "_are_we_tracing", lambda: False)
    stand_ins = _groups(values.assumptions, world, learn_world_size) | _object_collectives() | _with_futures(values, communication)
    for module, name in _where_they_are_known(stand_ins.keys()):
        patches.replace(module, name, stand_ins[name])
    for module in (dist, dist.distributed_c10d):
        if not hasattr(module, "ProcessGroupNCCL"):
            patches.replace(module, "ProcessGroupNCCL", NoNccl)
    if (numbering := module_that_numbers_collectives()) is not None:
        patches.replace(numbering, "generate_unique_id", itertools.count(1).__next__)  # the script's random numbers are its own
    _install_coalescing(patches, communication)
    environment.install_processes(patches, world)
    patches.when_imported(
        "torch.distributed.optim.zero_redundancy_optimizer",
        lambda module: patches.replace(module, "_broadcast_object", lambda obj, *args, **kwargs: obj),
    )


def _where_they_are_known(names: Set[str]) -> list[tuple[Any, str]]:
    """Modules that know functions of ``torch.distributed`` by their names: torch's meshes, for one, have imported some."""
    originals = {name: getattr(dist.distributed_c10d, name) for name in names}
    found = [(module, name) for module in (dist, dist.distributed_c10d) for name in names]
    for module in {id(module): module for module in sys.modules.values()}.values():
        known = getattr(module, "__dict__", {})
        if module is not dist and module is not dist.distributed_c10d:
            found += [(module, name) for name in names & known.keys() if known[name] is originals[name]]
    return found


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


# -- groups ------------------------------------------------------------------------------------------------------------------


def _groups(assumptions: Assumptions, world: RankInfo, learn_world_size: Callable[[int], None]) -> dict[str, Callable[..., Any]]:
    """Functions of ``torch.distributed`` that make and name groups."""
    init, new_group, get_backend = dist.init_process_group, dist.new_group, dist.get_backend
    asked_for, process = {"backend": "nccl"}, os.getpid()

    @functools.wraps(init)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if os.getpid() != process:
            raise NeedsGpuError("a rank in a process that the script has started itself", _LAUNCH_IT)
        asked_for["backend"] = str(backend or "nccl")
        asked = kwargs.get("world_size", args[2] if len(args) > 2 else -1)
        if asked not in (-1, world.world_size) and world.has_launcher:
            assumptions.add(
                f"init_process_group was asked for a world of {asked} processes; predicted is one of {world.world_size}: see "
                "world_size of memfit.predict, --nproc of memfit run"
            )
        size = world.world_size if asked == -1 or world.has_launcher else asked
        learn_world_size(size)
        init("fake", store=fake_store(), rank=world.rank, world_size=size)

    @functools.wraps(new_group)
    def new_fake_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        kept = {name: value for name, value in kwargs.items() if name in ("group_desc", "use_local_synchronization")}
        return new_group(ranks, backend="fake", **kept)

    @functools.wraps(get_backend)
    def get_named_backend(group: Any = None) -> Any:
        """Scripts are told what they asked for; torch itself must know that its group is fake."""
        named = get_backend(group)
        if named != "fake" or sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            return named
        return "nccl" if "nccl" in asked_for["backend"] or ":" in asked_for["backend"] else asked_for["backend"]

    def split_group(parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        mine = next((ranks for ranks in split_ranks if dist.get_rank(parent_pg) in ranks), None)
        return None if mine is None else new_group(mine, backend="fake")

    return {
        "init_process_group": init_process_group,
        "new_group": new_fake_group,
        "split_group": split_group,
        "get_backend": get_named_backend,
        "is_nccl_available": lambda: True,
        "is_torchelastic_launched": lambda: world.has_launcher,
    }


class NoNccl:
    """``ProcessGroupNCCL`` of a torch without it: no group is one, and its options have no effect."""

    class Options(SimpleNamespace):
        def __init__(self, is_high_priority_stream: bool = False) -> None:
            super().__init__(is_high_priority_stream=is_high_priority_stream, config=SimpleNamespace())


# -- collectives -------------------------------------------------------------------------------------------------------------


class DoneWork(dist.Work):
    """A collective that is over, with its result in its future, as NCCL's have it."""

    def __init__(self, result: Any, block: Callable[[], None] | None = None, let_go: Callable[[], None] | None = None) -> None:
        """``block`` makes the current stream wait; ``let_go`` drops what NCCL holds for the collective."""
        super().__init__()
        self._result = result if isinstance(result, list) else [result]
        self._block, self._let_go = block, let_go

    def wait(self, timeout: Any = None) -> bool:
        self.block_current_stream()
        if self._let_go is not None:
            self._let_go()
        return True

    def block_current_stream(self) -> None:
        if self._block is not None:
            self._block()

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._result)
        return future


class Shelves:
    """What NCCL's groups hold for collectives with ``async_op``: their tensors, until ``wait()`` of the work.

    Where only the work's future is waited for, as DDP's reducer does, the group's watchdog sees that the collective is over, and
    the next collective of the group lets go (``shelvesToUnstash_`` in ProcessGroupNCCL.cpp). What the first step left is always
    seen in time: kernels are loaded and the optimizer is imported meanwhile.
    """

    WATCHDOG_SECONDS: Final = 0.1
    """How long the watchdog sleeps between two looks (``kWatchdogThreadSleepMillis``)."""

    def __init__(self, communication: Communication, assumptions: Assumptions) -> None:
        self._communication, self._assumptions = communication, assumptions
        self._held: dict[str, list[tuple[Any, float, int]]] = {}
        """By group: tensors, when their collective is over, and in which step it was issued."""

    def hold(self, tensors: Any) -> Callable[[], None]:
        """For the collective that was issued last; calling what is returned lets go."""
        issued = self._communication
        entry, held = (tensors, issued.last_end, issued.num_steps), self._held.setdefault(issued.last_group, [])
        held.append(entry)

        def let_go() -> None:
            held[:] = [other for other in held if other is not entry]

        return let_go

    def let_go_of_seen(self) -> None:
        """A collective is issued in the group of the last one."""
        now, held = self._communication.host_seconds, self._held.get(self._communication.last_group)
        if not held:
            return
        kept = [entry for entry in held if entry[2] > 1 and now < entry[1] + self.WATCHDOG_SECONDS]
        if any(step < self._communication.num_steps for _, _, step in kept):
            self._assumptions.add(
                "What collectives were given that the run waits for by their futures, as DDP does, is held for 0.1 s after they "
                "are over, as long as NCCL's watchdog may sleep: another pace of the host changes what is held"
            )
        held[:] = kept


def _with_futures(values: Values, communication: Communication) -> dict[str, Callable[..., Any]]:
    """Torch's fake collectives have nothing in their futures, where communication hooks look for the result, and take no time."""
    shelves = Shelves(communication, values.assumptions)

    def with_future(collective: Callable[..., Any], tell: Callable[..., None] | None) -> Callable[..., Any]:
        @functools.wraps(collective)
        def call(*args: Any, **kwargs: Any) -> Any:
            work = collective(*args, **kwargs)
            if isinstance(work, DoneWork):
                return work  # another name of the same collective, which has been through here
            if tell is not None and args:
                tell(*args, **kwargs)
            shelves.let_go_of_seen()
            if work is None:  # only the stream that it was issued on waits for it
                communication.wait()
                return None
            if not args:
                return work
            tensors = [arg for arg in args if isinstance(arg, (torch.Tensor, list))]
            return DoneWork(args[0], functools.partial(communication.wait, communication.last_end), shelves.hold(tensors))

        return call

    def tell_exchanged(received: Any, sent: Any = None, output_splits: Any = None, *args: Any, **kwargs: Any) -> None:
        if not (output_splits or kwargs.get("output_split_sizes")):  # with sizes it is what was counted, not the counts
            values.exchange(received, sent)

    told: dict[str, Callable[..., None] | None] = dict.fromkeys(_OTHERS)
    told |= dict.fromkeys(_REDUCING, _tell_reduced) | dict.fromkeys(_GATHERING, _tell_gathered)
    told |= dict.fromkeys(_EXCHANGING, tell_exchanged) | {"broadcast": _tell_broadcast}
    return {name: with_future(getattr(dist, name), tell) for name, tell in told.items() if hasattr(dist, name)}


def _install_coalescing(patches: Patches, communication: Communication) -> None:
    """Collectives that torch issues together, for which it has no shapes; each leaves its result in a tensor that it is given."""
    for name in COALESCED:
        if not has_kernel(name, "Meta"):
            patches.implement("Meta", name, lambda *args, **kwargs: FakeWork().boxed())

    def around(append: Callable[..., None]) -> Callable[..., None]:
        def call(manager: Any, work: Any = None) -> None:
            append(manager, work and DoneWork([], functools.partial(communication.wait, communication.last_end)))

        return call

    patches.wrap(CoalescingManager, "append", around)


def _tell_reduced(tensor: Any, *args: Any, group: Any = None, op: Any = None, **kwargs: Any) -> None:
    operation = next((arg for arg in args if isinstance(arg, (dist.ReduceOp, dist.ReduceOp.RedOpType))), op)
    host_data.reduce(tensor, dist.ReduceOp.SUM if operation is None else operation, dist.get_world_size(group))


def _tell_broadcast(tensor: Any, src: Any = None, group: Any = None, *args: Any, group_src: Any = None, **kwargs: Any) -> None:
    if group_src is not None and group is not None:
        src = dist.get_global_rank(group, group_src)
    if src != dist.get_rank():
        host_data.receive(tensor)


def _tell_gathered(gathered: Any, tensor: Any = None, *args: Any, group: Any = None, **kwargs: Any) -> None:
    host_data.gather(gathered, tensor, dist.get_world_size(group))
    routing.gather(gathered, tensor)


def _object_collectives() -> dict[str, Callable[..., Any]]:
    """Collectives of Python objects: every other rank has what this one has."""

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def scatter_object_list(output: list[Any], given: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        if given:
            output[0] = given[0]

    return {
        "all_gather_object": all_gather_object,
        "gather_object": gather_object,
        "broadcast_object_list": _nothing,
        "scatter_object_list": scatter_object_list,
        "send_object_list": _nothing,
        "recv_object_list": _nothing,
        "barrier": _done,
        "monitored_barrier": _done,
        "all_reduce_coalesced": _done,
    }


def _nothing(*args: Any, **kwargs: Any) -> None: ...


def _done(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
    return DoneWork([]) if async_op else None
