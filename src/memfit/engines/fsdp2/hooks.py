"""FSDP2's work around its units, as recorders hear of it: ``FSDPParamGroup`` does it, before and after forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from memfit.engines.engine import Engine, Learner, Reporter
from memfit.ledger import Phase
from memfit.torch_compat.fsdp import unsharded_gradients, unsharded_parameters, unsharded_tensors
from memfit.torch_compat.patches import Patches

_PHASES = {
    "pre_forward": Phase.PRE_FORWARD,
    "post_forward": Phase.POST_FORWARD,
    "pre_backward": Phase.PRE_BACKWARD,
    "post_backward": Phase.POST_BACKWARD,
}


def patch(engine: Engine, groups: Any, patches: Patches, reporter: Reporter) -> None:
    """Takes the module in which ``FSDPParamGroup`` is."""
    patches.because("what FSDP2 gathers, frees and reduces")
    for name, phase in _PHASES.items():
        patches.wrap(groups.FSDPParamGroup, name, functools.partial(_around, engine, phase, reporter))
    patches.wrap(groups.FSDPParamGroup, "wait_for_unshard", functools.partial(_after_unsharding, reporter))


def _around(engine: Engine, phase: Phase, reporter: Reporter, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        # Before a forward, FSDP names the module: a grouped unit runs this for each of its own.
        modules = args[:1] if phase is Phase.PRE_FORWARD and args else group.modules
        if phase is Phase.POST_BACKWARD:
            reporter.tell_whole_gradients(group, lambda: list(unsharded_gradients(group)))
        learn = functools.partial(_learn_shards, group)
        return reporter.in_task(engine, phase, modules, lambda: original(group, *args, **kwargs), learn)

    return call


def _learn_shards(group: Any, learner: Learner) -> None:
    managed = [known.sharded_param for known in group.fsdp_params]
    learner.learn_shards(lambda: [(shard.grad, shard) for shard in managed if shard.grad is not None])


def _after_unsharding(reporter: Reporter, original: Callable[..., Any]) -> Callable[..., Any]:
    def wait_for_unshard(group: Any) -> Any:
        result = original(group)
        reporter.tell_whole_parameters(group, unsharded_tensors(group), lambda: unsharded_parameters(group))
        return result

    return wait_for_unshard
