"""What blocks turn out to be, by the addresses of tensors: parameters, buffers, gradients, optimizer state, inputs.

A recording from the allocator's history never sees a tensor being made. What is known at some moments is which tensors there are,
and where: a fact says that the block which is at an address at that moment has a role. Facts are small tuples; which block it was
is found out later, when the history is read.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from memfit.ledger import Category
from memfit.record.module_names import ModuleNames
from memfit.record.roles import RoleLearner
from memfit.record.tensors import plain_tensors, tensors_in
from memfit.torch_compat.distributed import bucket_sizes
from memfit.torch_compat.tensors import where_data_begin, where_storages_begin


class Fact(NamedTuple):
    """The block at ``address`` has a role."""

    address: int
    """Where it is; for a bucket of DDP, which no tensor shows, 0."""
    role: Category
    module: int = -1
    name: str | None = None
    is_whole: bool = False
    """Does the tensor fill its storage? Then a second name is that of a tied weight."""
    size: int = 0
    """The bytes of a bucket."""


class FactGroups:
    """The facts of several groups, one after the other. The groups are not copied."""

    __slots__ = ("_groups",)

    def __init__(self, groups: Sequence[Collection[Fact]]) -> None:
        self._groups = groups

    def __iter__(self) -> Iterator[Fact]:
        return itertools.chain.from_iterable(self._groups)

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    def __contains__(self, fact: object) -> bool:
        return any(fact in group for group in self._groups)


class _Said(NamedTuple):
    """What was said of some tensors."""

    owners: list[int]
    """Whose they are."""
    where: list[int]
    is_there: list[bool]
    slots: list[int]
    """Per fact: which of the tensors it is of."""
    facts: list[Fact]
    can_move: bool
    """Was one thing said of every tensor that is there? Then the same can be said of them elsewhere."""


class _SaidElsewhere:
    """What was said of some tensors, of where they are now. Made in every step, and read only where the step is kept."""

    __slots__ = ("_said", "_where")

    def __init__(self, said: _Said, where: list[int]) -> None:
        self._said, self._where = said, where

    def __iter__(self) -> Iterator[Fact]:
        for slot, fact in zip(self._said.slots, self._said.facts, strict=True):
            yield fact._replace(address=self._where[slot])

    def __len__(self) -> int:
        return len(self._said.facts)

    def __contains__(self, fact: object) -> bool:
        return any(fact == own for own in self)


class AddressRoles(RoleLearner):
    """RoleLearner by address: hands facts to ``learn``.

    A training repeats itself: the same is said in every step, of the same places or of others.
    """

    def __init__(self, names: ModuleNames, device_type: str, learn: Callable[[Collection[Fact]], None]) -> None:
        super().__init__(names)
        self._device_type, self._learn = device_type, learn
        self._where: list[int] | None = None
        """Where all parameters were when they were last looked at."""
        self._said: dict[Hashable, _Said] = {}
        self._states: dict[int, list[int]] = {}
        """By optimizer: where some of its state was."""

    def say(self, tensor: torch.Tensor, role: Category, module: int = -1, name: str | None = None, *, before: bool = False) -> None:
        self._learn(self._facts(tensor, role, module, name))

    # -- models --------------------------------------------------------------------------------------------------------------

    def learn_model(self, root: nn.Module) -> None:
        if next(root.parameters(), None) is not None:  # not for a loss that is made anew in every forward
            self._said.clear()  # what is known by identity may be of a model that is no more
        super().learn_model(root)
        for size in bucket_sizes(root):
            self._learn((Fact(0, Category.ALL_REDUCE, size=size),))

    def relearn_parameters(self) -> None:
        if self._where is None or self._where != self._places_of_parameters():
            self.repeat_parameters()

    def repeat_parameters(self) -> None:
        """Says again where all of them are: what was said before may be forgotten by now."""
        self._where = self._places_of_parameters()
        for known in list(self._parameters.values()):
            parameter = known.reference()
            if parameter is not None:
                self.learn_parameter(parameter, known.role, known.name)

    def _places_of_parameters(self) -> list[int] | None:
        return where_data_begin([known.reference() for known in self._parameters.values()])

    # -- gradients and optimizers ----------------------------------------------------------------------------------------------

    def learn_gradients(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Looks at the ``.grad`` of an optimizer's parameters, by default of all that are known."""
        if optimizer is None:
            found = [tensor for known in self._parameters.values() if (tensor := known.reference()) is not None]
        else:
            found = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad if parameter.is_leaf else None for parameter in found]

        self._say_of(
            ("gradients", id(optimizer)), found, gradients, lambda slot, gradient: self._facts_of_gradient(gradient, found[slot])
        )

    def _say_of(
        self,
        key: Hashable,
        owners: Sequence[Any],
        tensors: Sequence[torch.Tensor | None],
        facts: Callable[[int, torch.Tensor], list[Fact]],
    ) -> None:
        """Says what there is to say of some tensors, which ``facts`` gives of each: if they are the same, the same as last time."""
        where, whose, before = where_storages_begin(tensors), list(map(id, owners)), self._said.get(key)
        if where is not None and before is not None and before.owners == whose:
            if before.where == where:
                self._learn(before.facts)
                return
            if before.can_move and [address > 0 for address in where] == before.is_there:
                self._learn(_SaidElsewhere(before, where))
                return
        said = [(slot, fact) for slot, tensor in enumerate(tensors) if tensor is not None for fact in facts(slot, tensor)]
        slots, found = [slot for slot, _ in said], [fact for _, fact in said]
        self._learn(found)
        if where is not None:
            is_there = [address > 0 for address in where]
            can_move = [(slot, address) for slot, address in enumerate(where) if address] == [
                (slot, fact.address) for slot, fact in said
            ]
            self._said[key] = _Said(whose, where, is_there, slots, found, can_move)

    def learn_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor, role: Category | None = None) -> None:
        self._learn(self._facts_of_gradient(gradient, parameter, role))

    def _facts_of_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor, role: Category | None = None) -> list[Fact]:
        usual, module, name = self.gradient_of(parameter)
        return self._facts(gradient, role or usual, module, name)

    def learn_optimizer(self, optimizer: torch.optim.Optimizer, *, before: bool = False) -> None:
        self._states[id(optimizer)] = _places_of_state(optimizer)
        super().learn_optimizer(optimizer, before=before)

    def relearn_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Learns an optimizer's state if there is more of it or some of it moved: some optimizers make it in every step."""
        if _places_of_state(optimizer) != self._states.get(id(optimizer)):
            self.learn_optimizer(optimizer)

    def frozen_state(self, optimizers: Iterable[torch.optim.Optimizer]) -> list[tuple[str, int]]:
        """The parameters that are not trained and have optimizer state, each with its name and the bytes of that."""
        found = []
        for optimizer in optimizers:
            for parameter, state in optimizer.state.items():
                if isinstance(parameter, torch.Tensor) and not parameter.requires_grad:
                    known = self._parameters.get(id(parameter))
                    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(state))
                    found.append((known.name if known is not None and known.name else "without a name", size))
        return found

    # -- tensors -------------------------------------------------------------------------------------------------------------

    def learn_inputs(self, arguments: Any) -> None:
        inputs = [tensor for tensor in tensors_in(arguments) if tensor.is_leaf and not isinstance(tensor, nn.Parameter)]
        self._say_of("inputs", (), inputs, lambda _, tensor: self._facts(tensor, Category.INPUT, -1, None))

    def learn_unit(
        self,
        unit: int,
        tensors: Sequence[torch.Tensor],
        described: Callable[[], Iterable[tuple[torch.Tensor, nn.Module, str]]],
    ) -> None:
        """The full parameters that an engine holds for a unit right now."""
        described_once = cache(lambda: list(described()))

        def facts(slot: int, _: torch.Tensor) -> list[Fact]:
            tensor, module, name = described_once()[slot]
            return self._facts_of_named(tensor, Category.UNSHARDED_PARAMETER, module, name)

        self._say_of(("parameters of unit", unit), tensors, tensors, facts)

    def learn_gradients_of_unit(self, unit: int, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """The full gradients that an engine holds for a unit right now, each with the parameter that it is for."""
        found, parameters = [gradient for gradient, _ in gradients], [parameter for _, parameter in gradients]
        role = Category.UNSHARDED_GRADIENT
        self._say_of(
            ("gradients of unit", unit),
            parameters,
            found,
            lambda slot, gradient: self._facts_of_gradient(gradient, parameters[slot], role),
        )

    def learn_tensor(self, tensor: torch.Tensor, category: Category, module: nn.Module, name: str) -> None:
        if category is Category.OPTIMIZER_STATE:
            self.learn_master(tensor, self._names.name_in(module, name))
        else:
            self._learn(self._facts_of_named(tensor, category, module, name))

    def _facts_of_named(self, tensor: torch.Tensor, category: Category, module: nn.Module, name: str) -> list[Fact]:
        full_name = self._names.name_in(module, name)
        return self._facts(tensor, category, self._module_of(full_name), full_name)

    def _facts(self, tensor: torch.Tensor, role: Category, module: int, name: str | None) -> list[Fact]:
        return [Fact(address, role, module, name, is_whole) for address, is_whole in self._places(tensor)]

    def _places(self, tensor: torch.Tensor) -> Iterator[tuple[int, bool]]:
        """Where the blocks behind a tensor begin, and whether it fills them."""
        for plain in plain_tensors(tensor):
            if plain.device.type == self._device_type:
                storage = plain.untyped_storage()
                address = storage.data_ptr()
                if address:
                    yield address, plain.numel() * plain.element_size() == storage.nbytes()


def _places_of_state(optimizer: torch.optim.Optimizer) -> list[int]:
    """How much state there is, and where some of it is; of state whose place cannot be told, something new each time."""
    state = optimizer.state
    keys = list(state)
    some = [tensor for key in (*keys[:2], *keys[-2:]) for tensor in tensors_in(state[key])]
    return [len(state), *(where_data_begin(some) or [time.time_ns()])]
