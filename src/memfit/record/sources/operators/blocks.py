"""Which storages are known, when each one dies, and blocks for those that are new.

A storage's Python object lives as long as the storage itself, so a weak reference with a callback tells of its death at the moment
it happens, and keeps nothing alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from memfit.ledger import Category, LedgerBuilder
from memfit.record.position import ScopeStack
from memfit.torch_compat.devices import raw_stream_getter

StreamGetter = Callable[[], int]
"""Reads the number of the current stream."""


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

    def disown(self, storage: torch.UntypedStorage) -> int | None:
        """Forgets a storage, whose block is freed by another. Gives the block; none where others stand for it too."""
        ref = self.refs.get(id(storage))
        if ref is None or ref.block in self._sharers:
            return None
        del self.refs[ref.key]  # with the reference, the callback on its death is gone
        return ref.block

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


class BlockWriter:
    """Writes blocks with the device, the stream, the operator and the scope of the moment."""

    def __init__(self, builder: LedgerBuilder, scopes: ScopeStack) -> None:
        self._builder = builder
        self.scopes = scopes
        """Those of the thread that is at work."""
        self.table = StorageTable(builder)
        self._ops: dict[Any, int] = {}
        self._devices: dict[torch.device, tuple[int, Callable[[], int] | None]] = {}

    def op(self, func: Any) -> int:
        """The number of an operator's name."""
        number = self._ops.get(func)
        if number is None:
            number = self._ops[func] = self._builder.string(str(func))
        return number

    def new(
        self, plain: torch.Tensor, storage: torch.UntypedStorage, op: int, *, before: bool = False, size: int | None = None
    ) -> StorageRef | None:
        """Writes a block for a storage that is not known; none for the meta device, which has no memory.

        ``size`` is how much memory it takes, where that is not what the storage says.
        """
        device = plain.device
        known = self._devices.get(device)
        if known is None:
            if device.type == "meta":
                return None
            known = self._devices[device] = (self._builder.device(str(device)), raw_stream_getter(device))
        number, get_stream = known
        stream = get_stream() if get_stream is not None else 0
        size, scope = int(storage.nbytes()) if size is None else size, self.scopes.top
        if before:
            return self.table.add(storage, self._builder.alloc_before(size, number, op, stream), -1, size, stream, get_stream)
        return self.table.add(storage, self._builder.alloc(size, number, op, scope, stream), scope, size, stream, get_stream)

    def stand_for(
        self, storage: torch.UntypedStorage, device: torch.device, block: int, scope: int, size: int, stream: int
    ) -> None:
        """A storage stands for a block of this stream that was written before, on a device that the recording knows."""
        _, get_stream = self._devices[device]
        self.table.add(storage, block, scope, size, stream, get_stream)

    def adopt(self, plain: torch.Tensor, before: bool, op: int | None = None) -> StorageRef | None:
        """The reference of a storage that we may be meeting for the first time; ``before``: it was there before the recording."""
        storage = plain.untyped_storage()
        ref = self.table.find(storage)
        if ref is None:
            if op is None:
                op = self._builder.string("before the recording" if before else "outside the recording")
            ref = self.new(plain, storage, op, before=before)
        return ref

    def write_workspace(self, func: Any, device: torch.device, size: int) -> int:
        """Memory that an operator takes for itself, on a device that the recording knows; gives the block's number."""
        number, get_stream = self._devices[device]
        block = self._builder.alloc(size, number, self.op(func), self.scopes.top, get_stream() if get_stream is not None else 0)
        self._builder.role(block, Category.WORKSPACE)
        return block

    def free_workspace(self, block: int) -> None:
        self._builder.free(block)

    def empty_caches(self) -> None:
        """Every GPU gave what was free back to the driver."""
        for device, (number, _) in self._devices.items():
            if device.type == "cuda":
                self._builder.empty_cache(number)
