"""What the run does becomes marks and facts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from memfit.engines import Engine
from memfit.ledger import Category, Phase
from memfit.record.listener import Listener
from memfit.record.module_names import ModuleNames
from memfit.record.roles import ModelCalls
from memfit.record.sources.allocator.backward_plans import KNOWN_MODELS
from memfit.record.sources.allocator.facts import AddressRoles
from memfit.record.sources.allocator.history import AllocatorHistory
from memfit.record.sources.allocator.marks import MODULE_BITS, NOT_MARKED, MarkKind, Marks


class RunFollower(Listener):
    """Writes a mark for whatever happens, and learns roles when tensors are there to be looked at.

    ``begin_step`` is called where a training step begins, ``on_failure`` with what went wrong: nothing is followed from then on.
    """

    def __init__(
        self, history: AllocatorHistory, names: ModuleNames, begin_step: Callable[[], None], on_failure: Callable[[str], None]
    ) -> None:
        self.marks = Marks(history.set_note, self._begin_root, self._number_of)
        self.roles = AddressRoles(names, history.device_type, self.marks.learn)
        self.models = ModelCalls(names, self.roles, begin_step)
        self.ddp_modules: set[int] = set()
        """The numbers of modules that DDP wraps."""
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._gradients_are_due = False
        self._on_failure = on_failure
        self._roots: dict[int, weakref.ref[nn.Module]] = {}
        self.is_known_model = False
        """Has an earlier recording placed the backward of the first model that is called?"""

    def describe_failure(self, error: BaseException) -> str:
        problem = f"the recorder failed and detached: {type(error).__name__}: {error}"
        self._on_failure(problem)
        return problem

    def adopt(self, subjects: Sequence[Any]) -> None:
        """Learns what existed before the recording."""
        self.models.adopt(subjects)
        for subject in subjects:
            if isinstance(subject, torch.optim.Optimizer):
                self._optimizers[id(subject)] = weakref.ref(subject)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that were seen and still exist."""
        return [optimizer for reference in self._optimizers.values() if (optimizer := reference()) is not None]

    def roots(self) -> list[nn.Module]:
        """The modules that were called in no other one and still exist."""
        return [root for reference in self._roots.values() if (root := reference()) is not None]

    def learn_what_is_due(self) -> None:
        """Looks at gradients, if a model has run since they were last looked at, and writes down what was learned."""
        if self._gradients_are_due:
            self.roles.learn_gradients()
            self._gradients_are_due = False
        self.marks.write_learned()

    def repeat_all(self) -> None:
        """Says again where all parameters and optimizer states are: what was said before may be forgotten by now."""
        self.roles.repeat_parameters()
        for optimizer in self.optimizers():
            self.roles.learn_optimizer(optimizer)
        self.marks.write_learned()

    # -- what run_hooks.py tells -----------------------------------------------------------------------------------------------

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self.roles.learn_gradients(optimizer)
        self._gradients_are_due = False
        self.marks.write_learned()
        self.marks.write(MarkKind.OPTIMIZER, id(optimizer))

    def exit_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        self.roles.relearn_optimizer(optimizer)
        self.marks.write_learned()
        self.marks.write(MarkKind.OPTIMIZER_ENDS, id(optimizer))
        self.models.step_is_due = True

    def enter_task(self, engine: Engine | None, phase: Phase, modules: Any) -> int:
        self.marks.write(MarkKind.PHASE, int(phase) << MODULE_BITS | self.models.first_number(modules) + 1)
        return 0

    def exit_task(self, depth: int) -> None:
        self.marks.write_learned()
        self.marks.write(MarkKind.PHASE_ENDS)

    def learn_tensor(self, tensor: torch.Tensor, category: Category, module: nn.Module, name: str) -> None:
        self.roles.learn_tensor(tensor, category, module, name)

    def learn_cached(self, tensor: torch.Tensor) -> None:
        self.roles.say(tensor, Category.KEY_VALUE_CACHE)

    def learn_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor) -> None:
        self.roles.learn_gradient(gradient, parameter)

    def learn_unit(self, unit: Any, tensors: Sequence[Any], described: Callable[[], Iterable[Any]]) -> None:
        self.roles.learn_unit(id(unit), tensors, described)

    def learn_shards(self, shards: Callable[[], Iterable[Any]]) -> None:
        """They stay until the optimizer's step, and are looked at there."""

    def learn_gradients_of_unit(self, unit: Any, gradients: Callable[[], Sequence[Any]]) -> None:
        self.roles.learn_gradients_of_unit(id(unit), gradients())
        self.marks.write_learned()  # the engine is about to free them

    def emptied_cache(self) -> None:
        self.marks.write(MarkKind.EMPTY_CACHE)

    # -- what the marks ask ----------------------------------------------------------------------------------------------------

    def _begin_root(self, module: nn.Module, arguments: Any) -> None:
        if self.failed:
            return
        try:
            self.models.enter_root(module, arguments)
            if id(module) not in self._roots:
                self._meet_root(module)
            if isinstance(module, nn.parallel.DistributedDataParallel):
                self.ddp_modules.add(self.models.number_of(module))
            self._gradients_are_due = True
            self.marks.write_learned()
        except Exception as error:
            self.fail(error)

    def _meet_root(self, module: nn.Module) -> None:
        if not self._roots:
            self.is_known_model = KNOWN_MODELS.is_placed(module)
            self.marks.places_backward = not self.is_known_model
        self._roots[id(module)] = weakref.ref(module)

    def _number_of(self, module: nn.Module) -> int:
        if not self.failed:
            try:
                number = self.models.number_of(module)
                if not self.is_known_model or not KNOWN_MODELS.is_quiet(module):
                    return number
                self.marks.left_out.add(number)
            except Exception as error:
                self.fail(error)
        return NOT_MARKED
