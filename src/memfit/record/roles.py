"""What blocks turn out to be: parameters, buffers, gradients, optimizer state, inputs.

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
    """What was first said of a parameter: the first to name it knows best, an optimizer has no names to give."""

    reference: weakref.ref[torch.Tensor]
    role: Category
    module: int
    name: str | None


class RoleLearner(ABC):
    """Looks at models, optimizers and tensors, and says what the blocks behind them are. Keeps nothing alive."""

    def __init__(self, names: ModuleNames) -> None:
        self._names = names
        self._parameters: dict[int, KnownParameter] = {}

    @abstractmethod
    def say(self, tensor: torch.Tensor, role: Category, module: int = -1, name: str | None = None, *, before: bool = False) -> None:
        """Every block behind ``tensor`` has this role; ``before``: a block that is not known was there before the recording."""

    @abstractmethod
    def relearn_parameters(self) -> None:
        """Finds parameters whose data are elsewhere than they were."""

    @abstractmethod
    def learn_inputs(self, arguments: Any) -> None:
        """Of the arguments of a model, those that no part of the model made are inputs."""

    def learn_model(self, root: nn.Module) -> None:
        """Names the modules of a model, and finds its parameters, their gradients and its buffers."""
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

    def learn_parameter(self, parameter: torch.Tensor, role: Category, name: str | None = None) -> None:
        """A parameter, and its gradient if it has one."""
        module, key, known = self._module_of(name), id(parameter), self._parameters
        self.say(parameter, role, module, name, before=True)
        if key not in known:
            known[key] = KnownParameter(weakref.ref(parameter, lambda _: known.pop(key, None)), role, module, name)
        if parameter.is_leaf and parameter.grad is not None:
            self.say(parameter.grad, *self.gradient_of(parameter), before=True)

    def learn_master(self, tensor: torch.Tensor, name: str) -> None:
        """What an engine updates in place of a model's parameters: optimizer state, even if an optimizer calls it a parameter."""
        self.learn_parameter(tensor, Category.OPTIMIZER_STATE, name)

    def learn_optimizer(self, optimizer: torch.optim.Optimizer, *, before: bool = False) -> None:
        """Everything held in ``optimizer.state``, and the parameters it updates."""
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
        """The module and name of what an optimizer updates: of a part of a unit's tensor its own, not those of the whole."""
        known = self._parameters.get(id(parameter))
        if known is not None and known.name is not None:
            return known.module, known.name
        return self.gradient_of(parameter if isinstance(parameter, torch.Tensor) else None)[1:]

    def _unsaid(self, tensors: Iterable[torch.Tensor], role: Category) -> Sequence[torch.Tensor]:
        """Those of which it is worth saying that they have the role."""
        return list(tensors)

    def _module_of(self, name: str | None) -> int:
        return -1 if name is None else self._names.number_for_path(name.rpartition(".")[0])


class ModelCalls:
    """What happens before a model's forward, whatever the source: a step may begin, and the model and its inputs become known."""

    def __init__(self, names: ModuleNames, roles: RoleLearner, begin_step: Callable[[], None]) -> None:
        self._names, self._roles, self._begin_step = names, roles, begin_step
        self._learned: set[int] = set()
        self.step_is_due = True
        """Has an optimizer stepped since the last step began?"""
        self.marks_steps = True
        """Does a step begin at the first forward after an optimizer's step? Otherwise somebody else says where it begins."""

    def adopt(self, subjects: Sequence[Any]) -> None:
        """Learns the models, tensors and optimizers that existed before the recording."""
        for subject in subjects:
            if isinstance(subject, nn.Module):
                self._roles.learn_model(subject)
            elif isinstance(subject, torch.Tensor):
                self._roles.say(subject, Category.INPUT, before=True)
        for subject in subjects:  # last: only models know the names of parameters
            if isinstance(subject, torch.optim.Optimizer):
                self._roles.learn_optimizer(subject, before=True)

    def enter_root(self, module: nn.Module, arguments: Any) -> None:
        """A module that is in no other is about to be called."""
        if self.step_is_due and self.marks_steps:
            self._begin_step()
            self._roles.relearn_parameters()
        if id(module) not in self._learned or self._names.number(module) is None:
            patch_loaded()  # an engine, for one
            self._roles.learn_model(module)
            self._learned.add(id(module))
        self._roles.learn_inputs(arguments)

    def number_of(self, module: nn.Module) -> int:
        """The module's number; one that was never seen is named first."""
        number = self._names.number(module)
        if number is None:
            self._roles.learn_model(module)
            number = self._names.number(module)
            assert number is not None
        return number

    def first_number(self, modules: Iterable[nn.Module]) -> int:
        """The number of the first of ``modules`` that has one, -1 if none has."""
        return next((number for module in modules if (number := self._names.number(module)) is not None), -1)
