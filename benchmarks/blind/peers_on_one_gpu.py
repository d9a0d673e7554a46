"""Several real ranks on one GPU: what they send each other goes through the host, by gloo.

NCCL wants a GPU for each rank, and torch's fake group delivers nothing. Here each rank is a process with a CUDA context of its own,
and every collective copies to the host, exchanges there and copies back: on the GPU it takes nothing, as NCCL's collectives do but
for what a communicator has. A rank's peak is therefore what it would be on a GPU of its own, with what really arrives.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


def start_ranks(command: list[str], world_size: int) -> list[str]:
    """Runs a command once for each rank, all at the same time; returns what each printed. The first that fails ends all of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0"}
    ranks = [
        subprocess.Popen(
            command, env=os.environ | shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
        )
        for rank in range(world_size)
    ]
    try:
        return [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def join_ranks() -> None:
    """Begins a gloo group from the environment, and sends torch's collectives through the host."""
    dist.init_process_group("gloo")
    for name, collective in _THROUGH_HOST.items():
        setattr(dist, name, collective(getattr(dist, name)))
    dist._coalescing_manager = _one_by_one


class _Done:
    """A collective that is over."""

    def wait(self, *timeout: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


@contextmanager
def _one_by_one(*args: Any, **options: Any) -> Iterator[_Done]:
    yield _Done()


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that gloo can add up."""
    return tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype).contiguous()


def _all_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        held = _on_host(tensor)
        _reduce(original, held, op, group)
        tensor.data.copy_(held)
        return _Done() if async_op else None

    return call


def _reduce(all_reduce: Callable[..., Any], held: torch.Tensor, op: Any, group: Any) -> None:
    is_mean = op == dist.ReduceOp.AVG
    all_reduce(held, dist.ReduceOp.SUM if is_mean else op, group=group)
    if is_mean:
        held.div_(dist.get_world_size(group))


def _reduce_scatter(original: Callable[..., Any]) -> Callable[..., Any]:
    all_reduce = dist.distributed_c10d.all_reduce

    def call(output: Any, tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        held = _on_host(tensor)
        _reduce(all_reduce, held, op, group)
        output.data.copy_(held.flatten().chunk(dist.get_world_size(group))[dist.get_rank(group)].view(output.shape))
        return _Done() if async_op else None

    return call


def _all_gather(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(output: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        held = tensor.detach().cpu().contiguous()
        parts = [torch.empty_like(held) for _ in range(dist.get_world_size(group))]
        original(parts, held, group=group)
        if isinstance(output, list):
            for one, part in zip(output, parts, strict=True):
                one.data.copy_(part)
        else:
            output.data.copy_(torch.cat([part.flatten() for part in parts]).view(output.shape))
        return _Done() if async_op else None

    return call


def _all_to_all(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        held = torch.empty(output.shape, dtype=output.dtype)
        sizes = [None if each is None else [int(size) for size in each] for each in (output_split_sizes, input_split_sizes)]
        original(held, input.detach().cpu().contiguous(), *sizes, group=group)
        output.data.copy_(held)
        return _Done() if async_op else None

    return call


def _broadcast(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(tensor: Any, src: int | None = None, group: Any = None, async_op: bool = False, **more: Any) -> Any:
        held = tensor.detach().cpu().contiguous()
        original(held, src, group=group, **more)
        tensor.data.copy_(held)
        return _Done() if async_op else None

    return call


_THROUGH_HOST: dict[str, Callable[[Any], Any]] = {
    "reduce_scatter_tensor": _reduce_scatter,
    "_reduce_scatter_base": _reduce_scatter,
    "all_reduce": _all_reduce,
    "all_gather_into_tensor": lambda original: _all_gather(dist.distributed_c10d.all_gather),
    "_all_gather_base": lambda original: _all_gather(dist.distributed_c10d.all_gather),
    "all_gather": _all_gather,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
}
