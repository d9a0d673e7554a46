"""The models of a run, seen when they are first called: a user's ``build`` returns a step, and no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from memfit.plan.applying.named_units import unwrapped
from memfit.record import run_hooks
from memfit.record.listener import ModuleListener
from memfit.torch_compat.autograd import graph_task_id

Step = Callable[[], Any]


class _Roots(ModuleListener):
    """Is told of every module call; passes on the first of each model."""

    def __init__(self, see: Callable[[nn.Module], None]) -> None:
        self._see, self._depth = see, 0
        self._seen: set[int] = set()
        self.error: BaseException | None = None

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._depth += 1
        if self._depth == 1 and graph_task_id() == -1 and id(module) not in self._seen and self.error is None:
            self._seen.add(id(module))
            try:
                self._see(unwrapped(module))
            except Exception as error:  # raised when the step is over: a listener must not end a run
                self.error = error

    def exit_module(self, module: nn.Module, args: Any, result: Any) -> None:
        self._depth -= 1


def seeing_models(build: Callable[[], Step], see: Callable[[nn.Module], None]) -> Callable[[], Step]:
    """A ``build`` whose first step shows each model to ``see``, just before the model runs for the first time."""

    def build_and_see() -> Step:
        step: Any = build()
        roots = _Roots(see)
        is_first = True

        def watched() -> Any:
            nonlocal is_first
            if not is_first:
                return step()
            is_first = False
            run_hooks.attach(roots)
            try:
                result = step()
            finally:
                run_hooks.detach(roots)
            if roots.error is not None:
                raise roots.error
            return result

        return watched if callable(step) else step

    return build_and_see
