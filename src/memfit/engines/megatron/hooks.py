"""Megatron's work around buckets of gradients and parameters, as recorders hear of it. Names are those of Megatron-core 0.9 to
0.19; what a release does not have is passed over: its blocks are counted all the same, under the category of the moment that they
are made in."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch.distributed as dist

from memfit.engines.engine import Engine, Learn, Learner, Reporter
from memfit.ledger import Category, Phase
from memfit.torch_compat.patches import Patches

_MAIN_PARAMETERS: Final = ("fp32_from_float16_groups", "shard_fp32_from_float16_groups")
"""Where its optimizers keep what they update in place of a model's parameters."""
_BUFFERS: Final = ("_ParamAndGradBuffer", "ParamAndGradBuffer")
_BUCKETS: Final = ("_ParamAndGradBucketGroup", "Bucket")


def _patch_buffers(engine: Engine, module: Any, patches: Patches, reporter: Reporter) -> None:
    """Each kind of parameters has one buffer for them, with the distributed optimizer, and one for their gradients."""
    patches.because("which tensors Megatron keeps parameters and gradients in, and when it reduces and gathers them")
    for kind in (getattr(module, name) for name in _BUFFERS if hasattr(module, name)):
        patches.wrap(kind, "__init__", functools.partial(_after, engine, reporter, _learn_buffers))
    for kind in (getattr(module, name) for name in _BUCKETS if hasattr(module, name)):
        for method, phase in (("start_grad_sync", Phase.POST_BACKWARD), ("start_param_sync", Phase.PRE_FORWARD)):
            if method in vars(kind):
                patches.wrap(kind, method, functools.partial(_as_task, engine, reporter, phase))


def _patch_optimizer(name: str) -> Callable[[Engine, Any, Patches, Reporter], None]:
    def patch(engine: Engine, module: Any, patches: Patches, reporter: Reporter) -> None:
        patches.because("which tensors Megatron updates in place of a model's parameters")
        if hasattr(module, name):
            patches.wrap(getattr(module, name), "__init__", functools.partial(_after, engine, reporter, _learn_main_parameters))

    return patch


def _after(
    engine: Engine, reporter: Reporter, learn: Callable[[Any, Learner], None], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Has recorders learn what an object holds, once it is made."""

    def call(made: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(made, *args, **kwargs)
        learned: Learn = functools.partial(learn, made)
        reporter.in_task(engine, Phase.PRE_FORWARD, (), lambda: None, learned)
        return result

    return call


def _as_task(engine: Engine, reporter: Reporter, phase: Phase, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(bucket: Any, *args: Any, **kwargs: Any) -> Any:
        return reporter.in_task(engine, phase, (), lambda: original(bucket, *args, **kwargs))

    return call


def _learn_buffers(buffer: Any, learner: Learner) -> None:
    for attribute, category in (("param_data", Category.PARAMETER), ("grad_data", Category.GRADIENT)):
        tensor = getattr(buffer, attribute, None)
        if tensor is not None:
            learner.learn_tensor(tensor, category, buffer, attribute)


def _learn_main_parameters(optimizer: Any, learner: Learner) -> None:
    for attribute in _MAIN_PARAMETERS:
        for index, tensor in enumerate(_tensors_in(getattr(optimizer, attribute, None))):
            learner.learn_tensor(tensor, Category.OPTIMIZER_STATE, optimizer, f"{attribute}[{index}]")


def _tensors_in(value: Any) -> Iterator[Any]:
    """The tensors of lists in lists."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_in(each)
    elif hasattr(value, "untyped_storage"):
        yield value


def axis_groups() -> dict[str, list[int]]:
    """The ranks of this rank's groups, where Megatron has made some."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    groups = {
        "pp": state.get_pipeline_model_parallel_group(),
        "dp": state.get_data_parallel_group(),
        "cp": state.get_context_parallel_group(),
        "tp": state.get_tensor_model_parallel_group(),
    }
    return {name: list(dist.get_process_group_ranks(group)) for name, group in groups.items()}


PATCHES: Final[dict[str, Callable[[Engine, Any, Patches, Reporter], None]]] = {
    "megatron.core.distributed.param_and_grad_buffer": _patch_buffers,
    "megatron.core.optimizer.optimizer": _patch_optimizer("Float16OptimizerWithFloat16Params"),
    "megatron.core.optimizer.distrib_optimizer": _patch_optimizer("DistributedOptimizer"),
}
"""By module of Megatron."""
