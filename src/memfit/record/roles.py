"""The roles of blocks: parameter, buffer, gradient, optimizer state, input.

Roles are facts learned along the way; the ledger decides a block's category from them when the run is over. Parameters are found
from models when these are given or first called, gradients when they are there, optimizer state after each optimizer step. Which
block a tensor is behind, a source knows: by its storage, or by its address.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from memfit.engines.registry import sharded_parameters, unit_tensors
from memfit.ledger import Category
from memfit.record.module_names import ModuleNames
from memfit.record.run_hooks import patch_loaded
from memfit.record.tensors import plain_tensors, tensors_in

GRADIENT_OF = {
    Category.PARAMETER: Category.GRADIENT,
    Category.SHARDED_PARAMETER: Category.SHARDED_GRADIENT,
    Category.UNSHARDED_PARAMETER: Category.UNSHARDED_GRADIENT,
}


class KnownParameter(NamedTuple):
    """The first description of a parameter. Later ones are ignored: an optimizer, for one, knows no names."""

    reference: weakref.ref[torch.Tensor]
    role: Category
    module: int
    name: str | None


class RoleLearner(ABC):
    """Finds the roles of the blocks behind models, optimizers and tensors. Keeps nothing alive."""

    def __init__(self, names: ModuleNames) -> None:
        self._names = names
        self._parameters: dict[int, KnownParameter] = {}

    @abstractmethod
    def say(self, tensor: torch.Tensor, role: Category, module: int = -1, name: str | None = None, *, before: bool = False) -> None:
        """Gives every block behind ``tensor`` this role. ``before``: an unknown block existed before the recording."""

    @abstractmethod
    def relearn_parameters(self) -> None:
        """Finds parameters whose data have moved."""

    @abstractmethod
    def learn_inputs(self, arguments: Any) -> None:
        """Records a model's arguments as inputs, except those that the model itself made."""

    def learn_model(self, root: nn.Module) -> None:
        """Names a model's modules, and records its parameters, their gradients and its buffers."""
        prefix = self._names.name_tree(root)
        for known in unit_tensors(root):  # the block belongs to the unit, not to the first of the parameters in it
            self.learn_parameter(known.tensor, known.category, self._names.name_in(known.unit, known.name))
        sharded = {id(plain.untyped_storage()) for managed in sharded_parameters(root) for plain in plain_tensors(managed)}
        for name, parameter in root.named_parameters(remove_duplicate=False):
            is_sharded = any(id(plain.untyped_storage()) in sharded for plain in plain_tensors(parameter))
            role = Category.SHARDED_PARAMETER if is_sharded else Category.PARAMETER
            self.learn_parameter(parameter, role, self._names.parameter_name(root, prefix, name))
        for name, buffer in root.named_buffers(remove_duplicate=False):
            full_name = self._names.parameter_name(root, prefix, name)
            self.say(buffer, Category.BUFFER, self._module_of(full_name), full_name, before=True)

    def knows_parameters(self, root: nn.Module) -> bool:
        """Has every parameter of a model been recorded? One that is sharded after that gets other parameters."""
        return all(id(parameter) in self._parameters for parameter in root.parameters())

    def learn_parameter(self, parameter: torch.Tensor, role: Category, name: str | None = None) -> None:
        """Records a parameter, and its gradient if it has one."""
        module, key, known = self._module_of(name), id(parameter), self._parameters
        self.say(parameter, role, module, name, before=True)
        if key not in known:
            known[key] = KnownParameter(weakref.ref(parameter, lambda _: known.pop(key, None)), role, module, name)
        if parameter.is_leaf and parameter.grad is not None:
            self.say(parameter.grad, *self.gradient_of(parameter), before=True)

    def learn_master(self, tensor: torch.Tensor, name: str) -> None:
        """Records a master copy that an engine updates in place of a parameter: it is optimizer state."""
        self.learn_parameter(tensor, Category.OPTIMIZER_STATE, name)

    def learn_optimizer(self, optimizer: torch.optim.Optimizer, *, before: bool = False) -> None:
        """Records the tensors in ``optimizer.state`` and the parameters that the optimizer updates."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._parameters:
                    self.learn_parameter(parameter, Category.PARAMETER)
        for parameter, state in optimizer.state.items():
            fresh = self._unsaid(tensors_in(state), Category.OPTIMIZER_STATE)
            if fresh:
                module, name = self._updated_parameter(parameter)
                for tensor in fresh:
                    self.say(tensor, Category.OPTIMIZER_STATE, module, name, before=before)

    def gradient_of(self, parameter: torch.Tensor | None) -> tuple[Category, int, str | None]:
        """The role, module and name of a parameter's gradient."""
        known = self._parameters.get(id(parameter))
        if known is None:
            return Category.GRADIENT, -1, None
        return GRADIENT_OF.get(known.role, Category.GRADIENT), known.module, known.name

    def _updated_parameter(self, parameter: Any) -> tuple[int, str | None]:
        """The module and name of a parameter that an optimizer updates; for a part of a unit's tensor, those of the part."""
        known = self._parameters.get(id(parameter))
        if known is not None and known.name is not None:
            return known.module, known.name
        return self.gradient_of(parameter if isinstance(parameter, torch.Tensor) else None)[1:]

    def _unsaid(self, tensors: Iterable[torch.Tensor], role: Category) -> Sequence[torch.Tensor]:
        """The tensors whose role still has to be recorded."""
        return list(tensors)

    def _module_of(self, name: str | None) -> int:
        return -1 if name is None else self._names.number_for_path(name.rpartition(".")[0])


class ModelCalls:
    """What happens before a model's forward, for every source: a step may begin, and the model and its inputs are recorded."""

    def __init__(self, names: ModuleNames, roles: RoleLearner, begin_step: Callable[[], None]) -> None:
        self._names, self._roles, self._begin_step = names, roles, begin_step
        self._learned: set[int] = set()
        self.step_is_due = True
        """True if an optimizer has stepped since the last step began."""
        self.marks_steps = True
        """True if a step begins at the first forward after an optimizer step; otherwise the caller marks steps."""

    def adopt(self, subjects: Sequence[Any]) -> None:
        """Records the models, tensors and optimizers that existed before the recording."""
        for subject in subjects:
            if isinstance(subject, nn.Module):
                self._roles.learn_model(subject)
            elif isinstance(subject, torch.Tensor):
                self._roles.say(subject, Category.INPUT, before=True)
        for subject in subjects:  # last: only models know the names of parameters
            if isinstance(subject, torch.optim.Optimizer):
                self._roles.learn_optimizer(subject, before=True)

    def enter_root(self, module: nn.Module, arguments: Any) -> None:
        """Called before the forward of a module that no other module has called."""
        if self.step_is_due and self.marks_steps:
            self._begin_step()
            self._roles.relearn_parameters()
        if id(module) not in self._learned or self._names.number(module) is None:
            patch_loaded()  # an engine, for one
            if self._names.number(module) is None or not self._roles.knows_parameters(module):
                self._roles.learn_model(module)
            self._learned.add(id(module))
        self._roles.learn_inputs(arguments)

    def number_of(self, module: nn.Module) -> int:
        """The module's number; an unknown module is named first."""
        number = self._names.number(module)
        if number is None:
            self._roles.learn_model(module)
            number = self._names.number(module)
            assert number is not None
        return number

    def first_number(self, modules: Iterable[nn.Module]) -> int:
        """The number of the first known module in ``modules``, -1 if none is known."""
        return next((number for module in modules if (number := self._names.number(module)) is not None), -1)
