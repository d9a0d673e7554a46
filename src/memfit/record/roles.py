"""What blocks turn out to be: parameters, buffers, gradients, optimizer state, inputs.

Roles are facts learned along the way; the ledger decides a block's category from them when the run is over. Parameters are found
from models when these are given or first called, gradients when autograd accumulates them and again when a backward is over,
optimizer state after each optimizer step.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from memfit.engines.registry import sharded_parameters, unit_tensors
from memfit.ledger import Category, LedgerBuilder
from memfit.record.module_names import ModuleNames
from memfit.record.sources.operators.blocks import BlockWriter
from memfit.record.tensors import PLAIN_TYPES, plain_tensors, tensors_in

GRADIENT_OF = {
    Category.PARAMETER: Category.GRADIENT,
    Category.SHARDED_PARAMETER: Category.SHARDED_GRADIENT,
    Category.UNSHARDED_PARAMETER: Category.UNSHARDED_GRADIENT,
}


class Roles:
    """Learns and writes down what blocks are, each fact once."""

    def __init__(self, builder: LedgerBuilder, blocks: BlockWriter, names: ModuleNames) -> None:
        self._builder = builder
        self._table, self._adopt = blocks.table, blocks.adopt
        self._names = names
        self._written: set[tuple[int, Category]] = set()
        self._named: set[tuple[int, str]] = set()
        self._owners: dict[int, tuple[Category, int, str | None]] = {}
        """By a parameter's block: the role of its gradient, its module and its name."""
        self._parameters: dict[int, tuple[weakref.ref[torch.Tensor], Category, str | None]] = {}

    def assign(
        self, tensor: torch.Tensor, role: Category, module: int = -1, name: str | None = None, *, before: bool = False
    ) -> None:
        """Every block behind ``tensor`` has this role."""
        for plain in plain_tensors(tensor):
            ref = self._adopt(plain, before)
            if ref is not None:
                self._write(ref.block, role, module, name)

    def _is_written(self, tensor: torch.Tensor, role: Category) -> bool:
        """Cheap, for what is asked a thousand times a step."""
        if type(tensor) not in PLAIN_TYPES or tensor.layout is not torch.strided:
            return False
        ref = self._table.find(tensor.untyped_storage())
        return ref is not None and (ref.block, role) in self._written

    def _write(self, block: int, role: Category, module: int, name: str | None) -> None:
        fact = (block, role)
        if fact not in self._written:
            self._written.add(fact)
            if name is not None:
                self._named.add((block, name))
            self._builder.role(block, role, module, name)

    def _write_tied(self, block: int, role: Category, module: int, name: str) -> None:
        """A whole block that a second module knows by a name of its own: tied weights."""
        if (block, name) not in self._named:
            self._named.add((block, name))
            self._builder.role(block, role, module, name)

    # -- models --------------------------------------------------------------------------------------------------------------

    def learn_model(self, root: nn.Module) -> None:
        """Names the modules of a model, and finds its parameters, their gradients and its buffers."""
        prefix = self._names.name_tree(root)
        for known in unit_tensors(root):  # the block belongs to the unit, not to the first of the parameters in it
            self.learn_parameter(known.tensor, known.category, self._names.name_in(known.unit, known.name))
        sharded = {id(plain.untyped_storage()) for managed in sharded_parameters(root) for plain in plain_tensors(managed)}
        for name, parameter in root.named_parameters(remove_duplicate=False):
            full_name = self._names.parameter_name(root, prefix, name)
            is_sharded = any(id(plain.untyped_storage()) in sharded for plain in plain_tensors(parameter))
            self.learn_parameter(parameter, Category.SHARDED_PARAMETER if is_sharded else Category.PARAMETER, full_name)
        for name, buffer in root.named_buffers(remove_duplicate=False):
            full_name = self._names.parameter_name(root, prefix, name)
            module = self._names.number_for_path(full_name.rpartition(".")[0])
            self.assign(buffer, Category.BUFFER, module, full_name, before=True)

    def learn_parameter(self, parameter: torch.Tensor, role: Category, name: str | None = None) -> None:
        module = self._names.number_for_path(name.rpartition(".")[0]) if name is not None else -1
        for plain in plain_tensors(parameter):
            ref = self._adopt(plain, True)
            if ref is not None:
                self._write(ref.block, role, module, name)
                if name is not None and plain.numel() * plain.element_size() == ref.size:
                    self._write_tied(ref.block, role, module, name)
                # The first to name a parameter knows best: an optimizer has no names to give.
                self._owners.setdefault(ref.block, (GRADIENT_OF[role], module, name))
        if id(parameter) not in self._parameters:
            key, parameters = id(parameter), self._parameters
            parameters[key] = (weakref.ref(parameter, lambda _: parameters.pop(key, None)), role, name)
        if parameter.is_leaf and parameter.grad is not None:
            self.assign(parameter.grad, *self._owner_of(parameter), before=True)

    def relearn_parameters(self) -> None:
        """Finds parameters whose data were replaced since."""
        for reference, role, name in list(self._parameters.values()):
            parameter = reference()
            if parameter is not None and self._find_owner(parameter) is None:
                self.learn_parameter(parameter, role, name)

    def _find_owner(self, parameter: torch.Tensor) -> tuple[Category, int, str | None] | None:
        for plain in plain_tensors(parameter):
            ref = self._table.find(plain.untyped_storage())
            if ref is not None and ref.block in self._owners:
                return self._owners[ref.block]
        return None

    def _owner_of(self, parameter: torch.Tensor | None) -> tuple[Category, int, str | None]:
        found = self._find_owner(parameter) if parameter is not None else None
        return found or (Category.GRADIENT, -1, None)

    # -- gradients -----------------------------------------------------------------------------------------------------------

    def learn_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor | None) -> None:
        """Autograd accumulates this into ``parameter.grad``."""
        if parameter is None or self._find_owner(parameter) is not None or not self._is_made_by_a_module(parameter):
            self.assign(gradient, *self._owner_of(parameter))

    def _is_made_by_a_module(self, leaf: torch.Tensor) -> bool:
        """Reentrant checkpointing detaches activations and backpropagates to them as if they were leaves."""
        refs = (self._table.find(plain.untyped_storage()) for plain in plain_tensors(leaf))
        return any(ref is not None and ref.scope != -1 for ref in refs)

    def learn_gradients(self) -> None:
        """Looks at the ``.grad`` of every known parameter."""
        for reference, _, _ in list(self._parameters.values()):
            parameter = reference()
            gradient = parameter.grad if parameter is not None and parameter.is_leaf else None
            if gradient is not None and not any(self._is_written(gradient, role) for role in GRADIENT_OF.values()):
                self.learn_gradient(gradient, parameter)

    # -- optimizers ----------------------------------------------------------------------------------------------------------

    def learn_optimizer(self, optimizer: torch.optim.Optimizer, *, before: bool = False) -> None:
        """Everything held in ``optimizer.state``, and the parameters it updates."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._parameters:
                    self.learn_parameter(parameter, Category.PARAMETER)
        for parameter, state in optimizer.state.items():
            fresh = [tensor for tensor in tensors_in(state) if not self._is_written(tensor, Category.OPTIMIZER_STATE)]
            if fresh:
                module, name = self._updated_parameter(parameter)
                for tensor in fresh:
                    self.assign(tensor, Category.OPTIMIZER_STATE, module, name, before=before)

    def _updated_parameter(self, parameter: Any) -> tuple[int, str | None]:
        """The module and name of what an optimizer updates: of a part of a unit's tensor its own, not those of the whole."""
        _, _, name = self._parameters.get(id(parameter), (None, None, None))
        if name is not None:
            return self._names.number_for_path(name.rpartition(".")[0]), name
        return self._owner_of(parameter if isinstance(parameter, torch.Tensor) else None)[1:]

    # -- inputs --------------------------------------------------------------------------------------------------------------

    def learn_inputs(self, arguments: Any) -> None:
        """Arguments of a model that no part of the model made."""
        for tensor in tensors_in(arguments):
            if tensor.is_leaf and not isinstance(tensor, nn.Parameter):  # asking for grad_fn would make a Python object of it
                for plain in plain_tensors(tensor):
                    ref = self._adopt(plain, False)
                    if ref is not None and ref.scope == -1:
                        self._write(ref.block, Category.INPUT, -1, None)
