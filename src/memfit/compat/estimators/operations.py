"""What ran, in order, and which calls of modules it ran in.

Storages are numbered as they are met, so that a freed one whose address is used again is not taken for the one before it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.checkpoint import SAC_IGNORED_OPS

from memfit.ledger.schema import Device
from memfit.record.tensors import plain_tensors
from memfit.torch_compat.dispatch import tree_leaves
from memfit.torch_compat.fsdp import loaded


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One call of an operator."""

    name: str
    milliseconds: float
    made: dict[int, int]
    """The storages that it allocated, and their bytes as their devices give them."""
    taken: frozenset[int]
    """The storages of its arguments."""
    touched: frozenset[int]
    """The storages of its results."""
    is_view: bool
    is_in_place: bool
    is_random: bool


@dataclass(kw_only=True)
class ModuleCall:
    """One forward of a module: the operators from ``first`` to before ``last``."""

    name: str
    first: int
    last: int = -1
    first_save: int
    last_save: int = -1
    has_tensor_inputs: bool
    inputs: frozenset[int]
    outputs: frozenset[int] = frozenset()


@dataclass
class OperationLog:
    """Everything that ran in a forward."""

    operations: list[Operation] = field(default_factory=list)
    calls: list[ModuleCall] = field(default_factory=list)
    saved: set[int] = field(default_factory=set)
    """The storages that autograd keeps for backward."""
    saves: list[int] = field(default_factory=list)
    """Each time that autograd kept a tensor: how many operators had run."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes of every storage that some operator allocated."""
    _numbers: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = field(default_factory=dict)
    _num_storages: int = 0

    def storages_of(self, values: Any) -> frozenset[int]:
        """The numbers of all storages of the tensors in a value."""
        return frozenset(number for number, _, _ in self._storages_in(values))

    def save(self, tensor: torch.Tensor) -> None:
        """Notes that autograd keeps a tensor."""
        self.saved |= self.storages_of(tensor)
        self.saves.append(len(self.operations))

    def num_run_again(self, call: ModuleCall) -> int:
        """How many operators of a call run again: checkpointing stops when it has the last tensor that autograd kept."""
        return max(self.saves[call.first_save : call.last_save], default=call.first) - call.first

    def add(self, func: Any, args: Any, kwargs: Any, result: Any, milliseconds: float, before: frozenset[int]) -> None:
        """Notes one call. ``before`` has the storages of its arguments: numbered before it ran, they are not taken for new ones."""
        if func in SAC_IGNORED_OPS or not hasattr(func, "_schema"):
            return
        made, touched = {}, set()
        for number, size, is_new in self._storages_in(result):
            touched.add(number)
            if is_new:
                made[number] = size
        writes = any(argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments)
        changes_shape = torch.Tag.inplace_view in func.tags
        is_in_place = writes and not made and not changes_shape
        is_view = bool(touched) and not made and (changes_shape or not writes)
        self.sizes |= made
        if is_in_place and self.operations and self._is_copy_for_backward(self.operations[-1], touched or before):
            copy = self.operations.pop()
            made, milliseconds = copy.made, milliseconds + copy.milliseconds
        self.operations.append(
            Operation(
                name=func.overloadpacket.__name__,
                milliseconds=milliseconds,
                made=made,
                taken=before,
                touched=frozenset(touched) if touched or not writes else before,
                is_view=is_view,
                is_in_place=is_in_place,
                is_random=_is_random(func, args, kwargs),
            )
        )

    def _is_copy_for_backward(self, last: Operation, changed: Iterable[int]) -> bool:
        """Autograd copies a tensor that it needs before work in place changes it. The copy is a part of that work."""
        return last.name == "clone" and self.saved.issuperset(last.made) and last.taken.issuperset(changed)

    def _storages_in(self, values: Any) -> Iterator[tuple[int, int, bool]]:
        """Number, bytes and whether it is met for the first time, of every storage."""
        for tensor in tree_leaves(values):
            if isinstance(tensor, torch.Tensor):
                for plain in plain_tensors(tensor):
                    yield self._number(plain)

    def _number(self, tensor: torch.Tensor) -> tuple[int, int, bool]:
        storage = tensor.untyped_storage()
        key, size = id(storage), _given_bytes(int(storage.nbytes()), tensor.device)
        known = self._numbers.get(key)
        if known is not None and known[0]() is storage:
            return known[1], size, False
        number = self._num_storages
        self._num_storages += 1
        self._numbers[key] = (weakref.ref(storage), number)
        return number, size, True


def leaves_to_distributed_tensors(types: Iterable[type]) -> bool:
    """Is an operator on distributed tensors? They take it apart, and what they do on local tensors is seen after them."""
    tensors = loaded("torch.distributed.tensor")
    return tensors is not None and any(issubclass(kind, tensors.DTensor) for kind in types)


def _given_bytes(size_bytes: int, device: torch.device) -> int:
    granularity = Device.from_name(str(device)).granularity
    return -(-size_bytes // granularity) * granularity


def _is_random(func: Any, args: Any, kwargs: Any) -> bool:
    """Attention draws no numbers where its dropout is 0, however it is given."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = (kwargs or {}).get("dropout_p", args[position] if position < len(args) else argument.default_value)
            return bool(given)
    return True
