"""``RoleLearner`` by storage: each fact about a block is written at once, and only once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from memfit.ledger import Category, LedgerBuilder
from memfit.record.module_names import ModuleNames
from memfit.record.roles import GRADIENT_OF, RoleLearner
from memfit.record.sources.operators.blocks import BlockWriter
from memfit.record.tensors import PLAIN_TYPES, plain_tensors, tensors_in
from memfit.torch_compat.distributed import parts_of_distributed


class StorageRoles(RoleLearner):
    """Writes the roles of the blocks behind storages."""

    def __init__(self, builder: LedgerBuilder, blocks: BlockWriter, names: ModuleNames) -> None:
        super().__init__(names)
        self._builder = builder
        self._table, self._adopt = blocks.table, blocks.adopt
        self._written: set[tuple[int, Category]] = set()
        self._named: set[tuple[int, str]] = set()
        self._owners: dict[int, tuple[Category, int, str | None]] = {}
        """Maps a parameter's block to the role of its gradient, its module and its name."""
        self._buckets: set[int] = set()
        """Blocks in which an engine collects gradients: gradients lie there, but the blocks keep their own role."""

    def say(self, tensor: torch.Tensor, role: Category, module: int = -1, name: str | None = None, *, before: bool = False) -> None:
        for plain in plain_tensors(tensor):
            ref = self._adopt(plain, before)
            if ref is None or (ref.block in self._buckets and role is Category.GRADIENT):
                continue
            self._write(ref.block, role, module, name)
            if role in GRADIENT_OF:
                if name is not None and plain.numel() * plain.element_size() == ref.size:
                    self._write_tied(ref.block, role, module, name)
                self._owners.setdefault(ref.block, (GRADIENT_OF[role], module, name))

    def _write(self, block: int, role: Category, module: int, name: str | None) -> None:
        fact = (block, role)
        if fact not in self._written:
            self._written.add(fact)
            if name is not None:
                self._named.add((block, name))
            self._builder.role(block, role, module, name)

    def is_known(self, block: int, role: Category) -> None:
        """True if the ledger already has it."""
        self._written.add((block, role))

    def _write_tied(self, block: int, role: Category, module: int, name: str) -> None:
        """Records a second name of a whole block: tied weights."""
        if (block, name) not in self._named:
            self._named.add((block, name))
            self._builder.role(block, role, module, name)

    def _unsaid(self, tensors: Iterable[torch.Tensor], role: Category) -> Sequence[torch.Tensor]:
        return [tensor for tensor in tensors if not self._is_written(tensor, role)]

    def _is_written(self, tensor: torch.Tensor, role: Category) -> bool:
        """A cheap check: called thousands of times per step."""
        if type(tensor) not in PLAIN_TYPES and (parts := parts_of_distributed(tensor)) is not None:
            tensor = parts[0]
        if type(tensor) not in PLAIN_TYPES or tensor.layout is not torch.strided:
            return False
        ref = self._table.find(tensor.untyped_storage())
        return ref is not None and (ref.block, role) in self._written

    # -- parameters and their gradients ----------------------------------------------------------------------------------------

    def relearn_parameters(self) -> None:
        for reference, role, _, name in list(self._parameters.values()):
            parameter = reference()
            if parameter is not None and self._find_owner(parameter) is None:
                self.learn_parameter(parameter, role, name)

    def learn_tensor(self, tensor: torch.Tensor, category: Category, module: nn.Module, name: str) -> None:
        """Records what an engine knows about a tensor; ``name`` is relative to ``module``."""
        full_name = self._names.name_in(module, name)
        if category in GRADIENT_OF:
            self.learn_parameter(tensor, category, full_name)
        elif category is Category.OPTIMIZER_STATE:
            self.learn_master(tensor, full_name)
        else:
            number = self._names.number(module)
            self.say(tensor, category, -1 if number is None else number, full_name)
            if category is Category.REDUCE_SCATTER and (ref := self._table.find(tensor.untyped_storage())) is not None:
                self._buckets.add(ref.block)

    def learn_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor | None) -> None:
        """Records a gradient that autograd accumulates into ``parameter.grad``."""
        if parameter is None or self._find_owner(parameter) is not None or not self._is_made_by_a_module(parameter):
            self.say(gradient, *self.gradient_of(parameter))

    def learn_gradients(self) -> None:
        """Records the ``.grad`` of every known parameter."""
        for known in list(self._parameters.values()):
            parameter = known.reference()
            gradient = parameter.grad if parameter is not None and parameter.is_leaf else None
            if gradient is not None and not any(self._is_written(gradient, role) for role in GRADIENT_OF.values()):
                self.learn_gradient(gradient, parameter)

    def gradient_of(self, parameter: torch.Tensor | None) -> tuple[Category, int, str | None]:
        """The gradient's role, looked up by block: a parameter may be a part of a unit's tensor."""
        found = self._find_owner(parameter) if parameter is not None else None
        return found or (Category.GRADIENT, -1, None)

    def _find_owner(self, parameter: torch.Tensor) -> tuple[Category, int, str | None] | None:
        for plain in plain_tensors(parameter):
            ref = self._table.find(plain.untyped_storage())
            if ref is not None and ref.block in self._owners:
                return self._owners[ref.block]
        return None

    def _is_made_by_a_module(self, leaf: torch.Tensor) -> bool:
        """True for activations that reentrant checkpointing detaches and backpropagates to like leaves."""
        refs = (self._table.find(plain.untyped_storage()) for plain in plain_tensors(leaf))
        return any(ref is not None and ref.scope != -1 for ref in refs)

    # -- inputs --------------------------------------------------------------------------------------------------------------

    def learn_inputs(self, arguments: Any) -> None:
        for tensor in tensors_in(arguments):
            if tensor.is_leaf and not isinstance(tensor, nn.Parameter):  # asking for grad_fn would make a Python object of it
                for plain in plain_tensors(tensor):
                    ref = self._adopt(plain, False)
                    if ref is not None and ref.scope == -1:
                        self._write(ref.block, Category.INPUT, -1, None)
