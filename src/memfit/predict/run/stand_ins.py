"""Tensors that stand for what a call would have made, and the node of autograd's graph that stands for all it would have kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch

from memfit.ledger.schema import Array
from memfit.phantom.tensors.dispatch_cache import fake_tensor
from memfit.phantom.tensors.tensor_annotations import VALUES
from memfit.predict.run.windows import LedgerWindow, NotRepeatableError, RunReason, Written
from memfit.record.sources.operators.recorder import Recorder
from memfit.torch_compat.distributed import distributed, parts_of_distributed
from memfit.torch_compat.fake_tensors import FakeTensor, FakeTensorMode, outside_modes

HELD: Final = "_memfit_held"
"""The attribute of an output that has what its graph alone holds."""


@dataclass(frozen=True)
class Made:
    """A tensor that a call made: its block among those of the window, and where its numbers are among those of the call."""

    block: int
    stream: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    first: int
    num_dims: int
    spec: Any = None
    """How it is a part of a distributed tensor, if it is."""

    def sizes(self, numbers: Array) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
        """Shape, strides, offset and the bytes of the storage."""
        values = numbers[self.first : self.first + 2 * self.num_dims + 2].tolist()
        dims = self.num_dims
        return tuple(values[:dims]), tuple(values[dims : 2 * dims]), values[-2], values[-1]


class Maker:
    """Describes tensors that a window made, and makes others like them for the blocks of another."""

    def __init__(self, recorder: Recorder, mode: FakeTensorMode) -> None:
        self._recorder, self._mode = recorder, mode
        self._attributes: dict[torch.device, dict[str, Any]] = {}
        """Of a new tensor, by its device."""

    def describe(
        self, tensor: torch.Tensor, first_block: int, window: LedgerWindow, numbers: list[int], *, with_values: bool = True
    ) -> Made:
        """``numbers`` gets those of the tensor. Of a tensor whose values are known there is no other like it, unless they are not
        wanted."""
        spec, requires_grad = None, tensor.requires_grad
        if (parts := parts_of_distributed(tensor)) is not None:
            tensor, spec = parts
        if tensor.layout is not torch.strided or (with_values and any(vars(tensor).get(note) is not None for note in VALUES)):
            raise NotRepeatableError(RunReason.RESULT)
        block = self._recorder.block_of(tensor)
        if block is None or not first_block <= block < first_block + len(window.blocks):
            raise NotRepeatableError(RunReason.RESULT)
        size_bytes = int(tensor.untyped_storage().nbytes())
        if size_bytes % tensor.element_size():
            raise NotRepeatableError(RunReason.RESULT)
        first = len(numbers)
        numbers += (*tensor.shape, *tensor.stride(), int(tensor.storage_offset()), size_bytes)
        stream = int(window.blocks.stream[block - first_block])
        return Made(block - first_block, stream, tensor.dtype, tensor.device, requires_grad, first, tensor.dim(), spec)

    def make(
        self,
        described: Sequence[Made],
        numbers: Array,
        window: LedgerWindow,
        written: Written,
        others: dict[int, torch.Tensor],
    ) -> list[torch.Tensor]:
        """New tensors as described, whose storages stand for the blocks that were written. ``others`` gets a tensor without its
        device for each block that was met."""
        with outside_modes():
            tensors = [self._make_plain(made, numbers, window, written, others) for made in described]
        parts = zip(tensors, described, strict=True)
        return [tensor if made.spec is None else distributed(tensor, made.spec) for tensor, made in parts]

    def hold(self, block: int, device: torch.device, window: LedgerWindow, written: Written) -> torch.Tensor:
        """What keeps a block of the window until it is let go."""
        size, scope = window.size_of(block), written.scope_of(window, block)
        with outside_modes():
            held = torch.empty(size, dtype=torch.uint8, device="meta")
        stream, roles = int(window.blocks.stream[block]), window.roles_of(block)
        self._recorder.adopt_block(held, device, written.first_block + block, scope, size, stream, roles)
        return held

    def _make_plain(
        self,
        made: Made,
        numbers: Array,
        window: LedgerWindow,
        written: Written,
        others: dict[int, torch.Tensor],
    ) -> torch.Tensor:
        shape, stride, offset, size_bytes = made.sizes(numbers)
        base = others.get(made.block)
        if base is None:
            is_whole = not offset and _dense_bytes(shape, stride, made.dtype) == size_bytes
            if is_whole:
                base = torch.empty_strided(shape, stride, dtype=made.dtype, device="meta")
            else:
                base = torch.empty(size_bytes // made.dtype.itemsize, dtype=made.dtype, device="meta")
            others[made.block] = base
            block = written.first_block + made.block
            scope, roles = written.scope_of(window, made.block), window.roles_of(made.block)
            self._recorder.adopt_block(base, made.device, block, scope, size_bytes, made.stream, roles)
        else:
            is_whole = False
        if not is_whole:
            base = base if base.dtype is made.dtype else base.view(made.dtype)
            base = base.as_strided(shape, stride, offset)
        attributes = self._attributes.get(made.device)
        if attributes is None:
            attributes = self._attributes[made.device] = dict(vars(FakeTensor(self._mode, base, made.device)))
        return fake_tensor(base, made.device, attributes)


def _dense_bytes(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> int:
    if 0 in shape:
        return 0
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return (last + 1) * dtype.itemsize


class CastMaker(Protocol):
    """Makes casts that a call left."""

    def make(self, cast: Made, *, is_in_graph: bool) -> torch.Tensor | None:
        """The tensor, ``None`` where its block is gone."""
        ...

    def release(self, cast: Made) -> None:
        """It was never made, and autocast lets go of it."""
        ...


class KeptCast:
    """The cast of a leaf that autocast keeps, made when it is asked for. Calls make many of them, few of which are asked for."""

    __slots__ = ("_cast", "_is_in_graph", "_is_made", "_maker")

    def __init__(self, maker: CastMaker, cast: Made, *, is_in_graph: bool) -> None:
        self._maker, self._cast, self._is_in_graph, self._is_made = maker, cast, is_in_graph, False

    def __call__(self) -> torch.Tensor | None:
        self._is_made = True
        return self._maker.make(self._cast, is_in_graph=self._is_in_graph)

    def __del__(self) -> None:
        if not self._is_made and not self._is_in_graph:
            self._maker.release(self._cast)


class HeldGraph:
    """What a call that was written down holds until its backward is written down too, or the graph is given up."""

    def __init__(
        self,
        requires_grad: Sequence[bool],
        release: Callable[[], None],
        backward: Callable[[Sequence[torch.Tensor | None]], None],
    ) -> None:
        self.requires_grad, self._release, self._backward = requires_grad, release, backward
        self.is_done = False

    def run_backward(self, gradients: Sequence[torch.Tensor | None]) -> None:
        if self.is_done:
            raise RuntimeError("Trying to backward through the graph a second time")
        self._backward(gradients)
        self.is_done = True

    def __del__(self) -> None:
        if not self.is_done:
            self._release()


class WrittenDown(torch.autograd.Function):
    """Stands in autograd's graph for a whole call of a module."""

    @staticmethod
    def forward(ctx: Any, graph: HeldGraph, make: Callable[[], tuple[torch.Tensor, ...]], anchor: torch.Tensor) -> Any:
        ctx.graph = graph
        ctx.set_materialize_grads(False)
        tensors = make()
        ctx.mark_non_differentiable(*(tensor for tensor, flag in zip(tensors, graph.requires_grad, strict=True) if not flag))
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.graph.run_backward(gradients)
        return None, None, None


def array_of(numbers: Sequence[int]) -> Array:
    return np.array(numbers, dtype=np.int64)
