"""The table of known storages, how their deaths are noticed, and new blocks for new storages.

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
    """A weak reference to a storage, with the storage's block."""

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
        """Maps a second storage to the block of a known one."""
        self._sharers[with_ref.block] = self._sharers.get(with_ref.block, 1) + 1
        self.add(storage, with_ref.block, with_ref.scope, with_ref.size, with_ref.stream, with_ref.get_stream)

    def disown(self, storage: torch.UntypedStorage) -> int | None:
        """Forgets a storage whose block is freed elsewhere. Returns the block, ``None`` if other storages share it."""
        ref = self.refs.get(id(storage))
        if ref is None or ref.block in self._sharers:
            return None
        del self.refs[ref.key]  # with the reference, the callback on its death is gone
        return ref.block

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Records the new size of a known storage if it changed; new memory comes from the current stream."""
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
    """Writes blocks with the current device, stream, operator and scope."""

    def __init__(self, builder: LedgerBuilder, scopes: ScopeStack) -> None:
        self._builder = builder
        self.scopes = scopes
        """The scopes of the current thread."""
        self.table = StorageTable(builder)
        self._ops: dict[Any, int] = {}
        self._devices: dict[torch.device, tuple[int, Callable[[], int] | None]] = {}

    def op(self, func: Any) -> int:
        """The ledger's number of an operator's name."""
        number = self._ops.get(func)
        if number is None:
            number = self._ops[func] = self._builder.string(str(func))
        return number

    def new(
        self, plain: torch.Tensor, storage: torch.UntypedStorage, op: int, *, before: bool = False, size: int | None = None
    ) -> StorageRef | None:
        """Writes a block for an unknown storage; nothing for the meta device, which has no memory.

        ``size`` is the memory it takes, if that differs from the storage's own size.
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
        """Maps a storage to a block of this stream that was written before, on a known device."""
        _, get_stream = self._devices[device]
        self.table.add(storage, block, scope, size, stream, get_stream)

    def adopt(self, plain: torch.Tensor, before: bool, op: int | None = None) -> StorageRef | None:
        """The reference of a storage, added if unknown. ``before``: the storage existed before the recording."""
        storage = plain.untyped_storage()
        ref = self.table.find(storage)
        if ref is None:
            if op is None:
                op = self._builder.string("before the recording" if before else "outside the recording")
            ref = self.new(plain, storage, op, before=before)
        return ref

    def write_workspace(self, func: Any, device: torch.device, size: int) -> int:
        """Records memory that an operator takes for itself on a known device; returns the block's number."""
        number, get_stream = self._devices[device]
        block = self._builder.alloc(size, number, self.op(func), self.scopes.top, get_stream() if get_stream is not None else 0)
        self._builder.role(block, Category.WORKSPACE)
        return block

    def free_workspace(self, block: int) -> None:
        self._builder.free(block)

    def empty_caches(self) -> None:
        """Records that every GPU returned its cached memory to the driver."""
        for device, (number, _) in self._devices.items():
            if device.type == "cuda":
                self._builder.empty_cache(number)
