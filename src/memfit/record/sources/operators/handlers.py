"""How each operator's outputs are recorded, decided once from its schema.

::

    most operators           a new block for each unknown storage
    to, contiguous, reshape  the same: they return their input or a copy of it
    sums of gradients        what autograd would have added in place takes over the block
    detach, clone            how autograd takes a leaf's gradient
    resize, set, out=        known storages may have changed their size
    collectives              their buffers get a role
    views, in-place          nothing
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, Final, Protocol

import torch

from memfit.ledger import Category
from memfit.record.sources.operators.blocks import BlockWriter
from memfit.record.sources.operators.live_position import LivePosition
from memfit.record.sources.operators.roles import StorageRoles
from memfit.record.tensors import PLAIN_TYPES, plain_tensors, tensors_in
from memfit.torch_compat.autograd import called_by_the_engine, current_node, held_by_the_engine_alone
from memfit.torch_compat.dispatch import has_kernel

OutputHandler = Callable[[Any, Any, Any], None]
"""Records an operator's outputs. Takes it, its arguments and its result; where it has none, what it was told to write to."""

aten = torch.ops.aten

_WAITS: Final = frozenset(f"_c10d_functional::{name}" for name in ("wait_tensor", "wait_tensors", "_wrap_tensor_autograd"))


class OperatorObserver(Protocol):
    """Records memory that an operator takes besides its outputs, such as a predicted workspace."""

    def handler(self, func: Any, write_outputs: OutputHandler | None, blocks: BlockWriter) -> OutputHandler | None:
        """Returns the operator's handler, wrapped around the given one where needed. Called once per operator."""


class OutputHandlers(dict[Any, "OutputHandler | None"]):
    """Maps each operator to its handler, chosen when the operator is first seen."""

    def __init__(
        self,
        position: LivePosition,
        blocks: BlockWriter,
        roles: StorageRoles,
        observers: Sequence[OperatorObserver],
        dispatcher: CodeType,
    ) -> None:
        self._position, self._blocks, self._roles = position, blocks, roles
        self._observers = observers
        self._dispatcher = dispatcher
        """The code of the function that calls the handlers: its caller issued the operator."""
        self._refs = blocks.table.refs

    def move_to(self, position: LivePosition) -> None:
        """Switches to the work of another thread."""
        self._position, self._blocks.scopes = position, position.scopes

    def __missing__(self, func: Any) -> OutputHandler | None:
        handler = self._choose(func)
        for observer in self._observers:
            handler = observer.handler(func, handler, self._blocks)
        self[func] = handler
        return handler

    def _choose(self, func: Any) -> OutputHandler | None:
        if func is aten.add.Tensor:
            return self._on_add
        if func in (aten.detach.default, aten.clone.default):
            return self._on_detach_or_clone
        schema = getattr(func, "_schema", None)
        if schema is None or func is aten.lift_fresh.default:
            return self._on_new  # a higher-order operator; or torch.tensor(...), whose storage was made out of sight
        if func.namespace == "c10d":
            return self._on_collective
        if schema.name in _WAITS:
            return self._on_wait
        if any(returned.alias_info is None for returned in schema.returns):
            return self._on_new
        if has_kernel(schema.name + "." * bool(schema.overload_name) + schema.overload_name, "CompositeImplicitAutograd"):
            # In inference mode, and below autograd where the parts of a distributed tensor are worked on, operators that are made
            # of others come whole: ``to`` may copy or not.
            return self._on_new
        if "resize" in schema.name or schema.name == "aten::set_" or any(argument.is_out for argument in schema.arguments):
            return self._on_resize
        return None

    def _on_new(self, func: Any, args: Any, result: Any) -> None:
        if type(result) in PLAIN_TYPES and result.layout is torch.strided:
            storage = result.untyped_storage()
            if id(storage) not in self._refs:
                self._blocks.new(result, storage, self._blocks.op(func))
        elif isinstance(result, torch.Tensor):
            for plain in plain_tensors(result):
                self._blocks.adopt(plain, before=False, op=self._blocks.op(func))
        elif isinstance(result, (tuple, list)):
            for item in result:
                self._on_new(func, args, item)

    def _on_add(self, func: Any, args: Any, result: Any) -> None:
        # With a dispatch mode active, autograd sums gradients into a new tensor; without one, into the first if nothing else holds
        # it. The ledger says what the run does without us: the sum takes over the block.
        if (
            self._position.task != -1
            and not self._position.pinned
            and isinstance(args[0], torch.Tensor)
            and args[0].layout is torch.strided
            and held_by_the_engine_alone(args[0])
            and called_by_the_engine(self._dispatcher)
            and args[0].untyped_storage().nbytes() == result.untyped_storage().nbytes()
            and (ref := self._blocks.table.find(args[0].untyped_storage())) is not None
        ):
            self._blocks.table.share(result.untyped_storage(), ref)
        else:
            self._on_new(func, args, result)

    def _on_detach_or_clone(self, func: Any, args: Any, result: Any) -> None:
        if func is aten.clone.default:
            self._on_new(func, args, result)
        # Autograd takes a gradient by detaching it, or by cloning it where it cannot be taken.
        position = self._position
        if position.task != -1 and position.at_leaf and not position.pinned and called_by_the_engine(self._dispatcher):
            self._roles.learn_gradient(result, getattr(current_node(), "variable", None))

    def _on_resize(self, func: Any, args: Any, result: Any) -> None:
        for tensor in tensors_in(result):
            for plain in plain_tensors(tensor):
                self._blocks.table.resized(plain.untyped_storage())

    def _on_collective(self, func: Any, args: Any, result: Any) -> None:
        # Buffers may be met here for the first time: DDP makes its own in C++, before we look.
        name = func._schema.name
        if "reduce_scatter" in name:
            self._assign_all(args, Category.REDUCE_SCATTER)
        elif "allgather" in name:
            self._assign_all(args[:1], Category.ALL_GATHER)
        elif "allreduce" in name:
            self._assign_all(args[:1], Category.ALL_REDUCE)

    def _assign_all(self, values: Any, role: Category) -> None:
        for tensor in tensors_in(values):
            self._roles.say(tensor, role, before=True)

    def _on_wait(self, func: Any, args: Any, result: Any) -> None:
        # Waiting, now or later, gives back what it was given; on fake tensors it gives a copy that no real run makes.
        several = isinstance(result, (tuple, list))
        for given, got in zip(args[0], result, strict=True) if several else ((args[0], result),):
            ref = self._blocks.table.find(given.untyped_storage())
            if ref is not None and id(got.untyped_storage()) not in self._refs:
                self._blocks.table.share(got.untyped_storage(), ref)
