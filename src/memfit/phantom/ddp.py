"""DistributedDataParallel's reducer, which is C++ and wants data: its buckets, and when they come and go.

Facts from torch/csrc/distributed/c10d/reducer.cpp: flat buckets are made at construction, in the order of the parameters, and once
more before the second forward, in the order in which gradients came. A gradient is copied into its bucket or becomes a view of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import distributed as data_parallel

from memfit.phantom.replacing import Replacements
from memfit.phantom.torch_private import bucket_assignment

BROADCASTS_IN_FLIGHT = 2


def install(replacements: Replacements) -> None:
    replacements.attribute(dist, "Reducer", Reducer)
    replacements.attribute(dist, "Logger", Logger)
    replacements.attribute(dist, "_broadcast_coalesced", _broadcast_coalesced)
    replacements.attribute(dist, "_register_comm_hook", lambda reducer, state, hook: reducer.register_hook(state, hook))
    replacements.attribute(dist, "_register_builtin_comm_hook", lambda reducer, kind: None)
    replacements.attribute(data_parallel, "_verify_param_shape_across_processes", lambda *args, **kwargs: None)


class Bucket:
    """Gradients that are reduced together, in one flat tensor."""

    def __init__(self, number: int, indices: Sequence[int], params: Sequence[torch.Tensor], *, is_last: bool) -> None:
        self.number, self.indices, self.params, self.is_last_one = number, list(indices), [params[i] for i in indices], is_last
        first = self.params[0]
        self.flat = torch.empty(sum(param.numel() for param in self.params), dtype=first.dtype, device=first.device)
        self.pending = len(self.indices)

    def view_of(self, param: torch.Tensor) -> torch.Tensor:
        offset = 0
        for other in self.params:
            if other is param:
                return self.flat[offset : offset + param.numel()].view(param.shape)
            offset += other.numel()
        raise KeyError("the parameter is in another bucket")

    # What a communication hook asks of it.

    def buffer(self) -> torch.Tensor:
        return self.flat

    def set_buffer(self, tensor: torch.Tensor) -> None:
        self.flat = tensor

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return self.is_last_one

    def gradients(self) -> list[torch.Tensor]:
        return [self.view_of(param) for param in self.params]

    def parameters(self) -> list[torch.Tensor]:
        return self.params


class Reducer:
    """Takes the place of ``torch.distributed.Reducer``."""

    def __init__(
        self,
        params: list[torch.Tensor],
        bucket_indices: list[list[int]],
        limits: list[int],
        process_group: Any,
        expect_sparse: list[bool],
        bucket_bytes_cap: int,
        find_unused: bool = False,
        gradient_as_bucket_view: bool = False,
        names: Any = None,
        first_bucket_bytes_cap: int = 2**20,
        *others: Any,
    ) -> None:
        self._params = params
        self._caps = [first_bucket_bytes_cap, bucket_bytes_cap]
        self._group = process_group
        self._views = gradient_as_bucket_view
        self._hook: Callable[[Any], Any] | None = None
        self._arrived: list[int] = []
        self._is_rebuilt = False
        self._expects_gradients = False
        self._replaced: list[Bucket] = []
        self._make_buckets(bucket_indices)
        for index, param in enumerate(params):
            param.register_post_accumulate_grad_hook(lambda param, index=index: self._on_gradient(index, param))

    def _make_buckets(self, bucket_indices: list[list[int]]) -> None:
        last = len(bucket_indices) - 1
        self._buckets = [
            Bucket(number, indices, self._params, is_last=number == last) for number, indices in enumerate(bucket_indices)
        ]
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.indices}

    def prepare_for_forward(self) -> None: ...

    def prepare_for_backward(self, outputs: Any) -> None:
        self._expects_gradients = True
        for bucket in self._buckets:
            bucket.pending = len(bucket.indices)

    def _rebuild_buckets(self) -> bool:
        """Before the second forward: buckets in the order in which gradients came."""
        if self._is_rebuilt or len(self._arrived) < len(self._params):
            return False
        groups = _assign([self._params[index] for index in self._arrived], self._caps)
        if self._views:  # seen on an H200: with views, the old buckets live until the next backward
            self._replaced = self._buckets
        self._buckets, self._bucket_of = [], {}
        self._make_buckets([[self._arrived[i] for i in group] for group in groups])
        self._is_rebuilt = True
        return True

    def _on_gradient(self, index: int, param: torch.Tensor) -> None:
        if not self._expects_gradients:
            return
        self._replaced = []
        if not self._is_rebuilt and index not in self._arrived:
            self._arrived.append(index)
        bucket = self._bucket_of[index]
        view = bucket.view_of(param)
        if self._views:
            param.grad = view
        elif param.grad is not None:
            view.copy_(param.grad)
        bucket.pending -= 1
        if bucket.pending == 0:
            self._reduce(bucket)

    def _reduce(self, bucket: Bucket) -> None:
        if self._hook is not None:
            self._hook(bucket)
        else:
            dist.all_reduce(bucket.flat, group=self._group)

    def register_hook(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        self._hook = lambda bucket: hook(state, bucket)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Everything else that DDP asks for is about logging, joining and rare modes: nothing happens."""
        return _nothing


class Logger:
    """Takes the place of ``torch.distributed.Logger``."""

    def __init__(self, reducer: Any) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _assign(tensors: list[torch.Tensor], caps: list[int]) -> list[list[int]]:
    """Which tensors share a bucket, by number; the first cap is for the first bucket."""
    groups: list[list[int]] = bucket_assignment(tensors, caps, [False] * len(tensors))[0]
    return groups


def _nothing(*args: Any, **kwargs: Any) -> None: ...


def _broadcast_coalesced(process_group: Any, tensors: Sequence[torch.Tensor], buffer_size: int, src: int = 0) -> None:
    """Flat copies, broadcast two at a time: torch/csrc/distributed/c10d/comm.cpp."""
    if not tensors:
        return
    groups = _assign(list(tensors), [buffer_size])
    in_flight: list[torch.Tensor] = []
    for group in groups:
        first = tensors[group[0]]
        in_flight.append(torch.empty(sum(tensors[i].numel() for i in group), dtype=first.dtype, device=first.device))
        if len(in_flight) >= BROADCASTS_IN_FLIGHT:
            in_flight.pop(0)
