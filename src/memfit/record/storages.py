"""Which storages are known, and when each one dies.

A storage's Python object lives as long as the storage itself, so a weak reference with a callback tells of its death at the moment
it happens, and keeps nothing alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import torch

from memfit.ledger import LedgerBuilder
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.tensors import below_transforms, is_traceable_wrapper_subclass

StreamGetter = Callable[[], int]
"""Reads the number of the current stream."""

PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter, FakeTensor))
"""Types whose own storage holds their bytes, if their layout is strided."""


class StorageRef(weakref.ref[torch.UntypedStorage]):
    """A weak reference that knows the block behind the storage."""

    __slots__ = ("block", "get_stream", "key", "scope", "size", "stream")
    block: int
    get_stream: StreamGetter | None
    key: int
    scope: int
    size: int
    stream: int


class StorageTable:
    """Known storages by identity. Two storages can stand for one block; it is freed when the last of them dies."""

    def __init__(self, builder: LedgerBuilder) -> None:
        self.refs: dict[int, StorageRef] = {}
        self._builder = builder
        self._sharers: dict[int, int] = {}

    def find(self, storage: torch.UntypedStorage) -> StorageRef | None:
        return self.refs.get(id(storage))

    def add(
        self, storage: torch.UntypedStorage, block: int, scope: int, size: int, stream: int, get_stream: StreamGetter | None
    ) -> StorageRef:
        ref = StorageRef(storage, self._on_death)
        ref.block, ref.scope, ref.size, ref.stream, ref.get_stream = block, scope, size, stream, get_stream
        ref.key = id(storage)
        self.refs[ref.key] = ref
        return ref

    def share(self, storage: torch.UntypedStorage, with_ref: StorageRef) -> None:
        """``storage`` stands for a block that another storage already stands for."""
        self._sharers[with_ref.block] = self._sharers.get(with_ref.block, 1) + 1
        self.add(storage, with_ref.block, with_ref.scope, with_ref.size, with_ref.stream, with_ref.get_stream)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Notes the new size of a known storage, if it changed; new memory comes from the stream of the moment."""
        ref = self.refs.get(id(storage))
        if ref is not None and ref.size != (size := int(storage.nbytes())):
            if size and ref.get_stream is not None and ref.stream != (stream := ref.get_stream()):
                ref.stream = stream
                self._builder.move(ref.block, stream)
            ref.size = size
            self._builder.resize(ref.block, size)

    def _on_death(self, ref: StorageRef) -> None:
        self.refs.pop(ref.key, None)
        others = self._sharers.get(ref.block, 1) - 1
        if others == 0:
            self._sharers.pop(ref.block, None)
            self._builder.free(ref.block)
        else:
            self._sharers[ref.block] = others


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that really hold a tensor's bytes: itself, or the several inside a subclass or a sparse layout."""
    tensor = below_transforms(tensor)
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            inner = getattr(tensor, name)
            if isinstance(inner, torch.Tensor):
                yield from plain_tensors(inner)
    elif tensor.layout == torch.strided:
        yield tensor
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    # Opaque layouts (mkldnn) have no storage to look at.
