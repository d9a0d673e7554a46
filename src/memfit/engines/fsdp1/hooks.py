"""FSDP1's work around its units, as recorders hear of it: three functions of its runtime do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memfit.engines.engine import Engine, Learner, Reporter
from memfit.ledger import Category, Phase
from memfit.torch_compat.autograd import graph_task_id
from memfit.torch_compat.fsdp import flat_gradient_shard, unsharded_flat_parameters
from memfit.torch_compat.patches import Patches


def patch(engine: Engine, runtime: Any, patches: Patches, reporter: Reporter) -> None:
    """Takes the module with the functions of the runtime."""

    def around_unshard(original: Callable[..., Any]) -> Callable[..., Any]:
        def unshard(state: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            if not handle:
                return original(state, handle, *args, **kwargs)
            modules = (handle._fully_sharded_module,)

            def learn(learner: Learner) -> None:
                for tensor in unsharded_flat_parameters(handle):
                    learner.learn_tensor(tensor, Category.UNSHARDED_PARAMETER, *modules, "flat_param")

            phase = _by_pass(Phase.PRE_FORWARD, Phase.PRE_BACKWARD)
            return reporter.in_task(engine, phase, modules, lambda: original(state, handle, *args, **kwargs), learn)

        return unshard

    def around_reshard(original: Callable[..., Any]) -> Callable[..., Any]:
        def reshard(state: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            phase = _by_pass(Phase.POST_FORWARD, Phase.POST_BACKWARD)
            modules = (handle._fully_sharded_module,)
            return reporter.in_task(engine, phase, modules, lambda: original(state, handle, *args, **kwargs))

        return reshard

    def around_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
        def reduce_grad(state: Any, handle: Any) -> Any:
            def learn(learner: Learner) -> None:
                found = flat_gradient_shard(handle)
                if found is not None:
                    learner.learn_gradient(*found)

            flat = handle.flat_param
            reporter.tell_whole_gradients(handle, lambda: () if flat.grad is None else ((flat.grad, flat),))
            modules = (handle._fully_sharded_module,)
            return reporter.in_task(engine, Phase.POST_BACKWARD, modules, lambda: original(state, handle), learn)

        return reduce_grad

    patches.because("what FSDP1 gathers, frees and reduces")
    patches.wrap(runtime, "_unshard", around_unshard)
    patches.wrap(runtime, "_reshard", around_reshard)
    patches.wrap(runtime, "_reduce_grad", around_reduce)


def _by_pass(forward: Phase, backward: Phase) -> Phase:
    return forward if graph_task_id() == -1 else backward
