"""Host time of Python code in torch that no operator shows: checkpoint policies and distributed tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memfit.timing.host import HostPace
from memfit.timing.timeline import Timeline
from memfit.torch_compat.autograd import graph_task_id, policy_modes
from memfit.torch_compat.distributed import DTENSOR_FUNCTIONS, REDISTRIBUTE_LOCAL, REDISTRIBUTING
from memfit.torch_compat.patches import Patches

Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def install(patches: Patches, timeline: Timeline, pace: HostPace) -> None:
    """Makes calls of these functions advance the host's time."""
    for mode in policy_modes():
        patches.wrap(mode, "__torch_dispatch__", _spending(timeline, pace.policy_operator, pace.policy_operator))

    local, local_backward = pace.local

    def for_functions(names: tuple[str, ...]) -> Callable[[Any], None]:
        def act(module: Any) -> None:
            for name in names:
                function = getattr(module, name)
                patches.wrap(function, "forward", _spending(timeline, local, local))
                patches.wrap(function, "backward", _spending(timeline, local_backward, local_backward))

        return act

    def for_redistribution(module: Any) -> None:
        if hasattr(module, REDISTRIBUTE_LOCAL):
            patches.wrap(module, REDISTRIBUTE_LOCAL, _spending(timeline, *pace.redistributed))

    for module, names in DTENSOR_FUNCTIONS.items():
        patches.when_imported(module, for_functions(names))
    for module in REDISTRIBUTING:
        patches.when_imported(module, for_redistribution)


def _spending(timeline: Timeline, forward: float, backward: float) -> Make:
    def make(below: Callable[..., Any]) -> Callable[..., Any]:
        def spend_and_call(*args: Any, **kwargs: Any) -> Any:
            timeline.spend(forward if graph_task_id() == -1 else backward)
            return below(*args, **kwargs)

        return spend_and_call

    return make
