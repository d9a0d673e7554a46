"""DeepSpeed's work around modules and gradients, as recorders hear of it. Names are those of DeepSpeed 0.19; what an older release
does not have is passed over: its blocks are counted all the same, under the category of the moment that they are made in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

from memfit.engines.engine import Engine, Learner, Reporter
from memfit.ledger import Category, Phase
from memfit.torch_compat.autograd import graph_task_id
from memfit.torch_compat.patches import Patches

_MASTERS: Final = (
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
    "fp32_groups_flat_partition",
    "fp32_groups_flat",
    "fp32_groups",
)
"""Where its optimizers keep what they update in place of a model's parameters."""
_STAGE3: Final = "DeepSpeedZeroOptimizer_Stage3"
_BUCKETS: Final = (f"_{_STAGE3}__ipg_bucket_flat_buffer", "ipg_buffer")
"""Where gradients are collected until there are enough to reduce."""


def _patch_optimizer(*names: str) -> Callable[[Engine, Any, Patches, Reporter], None]:
    def patch(engine: Engine, module: Any, patches: Patches, reporter: Reporter) -> None:
        patches.because("which tensors DeepSpeed updates in place of a model's parameters, and when it reduces gradients")
        for kind in (getattr(module, name) for name in names):
            patches.wrap(kind, "__init__", functools.partial(_learning, engine, reporter, is_before=False))
            if "initialize_optimizer_states" in vars(kind):  # some step there, and the tensors would be taken for parameters
                patches.wrap(kind, "initialize_optimizer_states", functools.partial(_learning, engine, reporter, is_before=True))
            for method, phase, learn in (
                ("setup_buckets", Phase.PRE_BACKWARD, _learn_buckets),
                ("reduce_ipg_grads", Phase.POST_BACKWARD, _learn_buckets),
                (f"_{_STAGE3}__reduce_and_partition_ipg_grads", Phase.POST_BACKWARD, None),
            ):
                if method in vars(kind):
                    patches.wrap(kind, method, functools.partial(_around, engine, reporter, phase, learn))

    return patch


def _learning(engine: Engine, reporter: Reporter, original: Callable[..., Any], *, is_before: bool) -> Callable[..., Any]:
    """Has recorders learn what the optimizer holds, before it does something or afterwards."""

    def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        learn = functools.partial(_learn_state, optimizer)
        if is_before:
            reporter.in_task(engine, Phase.PRE_FORWARD, (), lambda: None, learn)
        result = original(optimizer, *args, **kwargs)
        if not is_before:
            reporter.in_task(engine, Phase.PRE_FORWARD, (), lambda: None, learn)
        return result

    return call


def _around(
    engine: Engine, reporter: Reporter, phase: Phase, learn: Callable[[Any, Learner], None] | None, original: Callable[..., Any]
) -> Callable[..., Any]:
    def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        learned = None if learn is None else functools.partial(learn, optimizer)
        return reporter.in_task(engine, phase, (), lambda: original(optimizer, *args, **kwargs), learned)

    return call


def _learn_state(optimizer: Any, learner: Learner) -> None:
    for attribute in _MASTERS:
        for index, tensor in enumerate(_tensors_in(getattr(optimizer, attribute, None))):
            learner.learn_tensor(tensor, Category.OPTIMIZER_STATE, optimizer, f"{attribute}[{index}]")
    for tensor in _tensors_in(getattr(optimizer, "grad_partitions_flat_buffer", None)):
        learner.learn_tensor(tensor, Category.SHARDED_GRADIENT, optimizer, "grad_partitions_flat_buffer")
    _learn_buckets(optimizer, learner)


def _learn_buckets(optimizer: Any, learner: Learner) -> None:
    buckets = getattr(optimizer, "ipg_buckets", {})
    flat = [getattr(bucket, "buffer", None) for bucket in (buckets.values() if isinstance(buckets, dict) else ())]
    for tensor in _tensors_in([*flat, *(getattr(optimizer, name, None) for name in _BUCKETS)]):
        learner.learn_tensor(tensor, Category.REDUCE_SCATTER, optimizer, "ipg_bucket")


def _tensors_in(value: Any) -> Iterator[Any]:
    """The tensors of lists in lists."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_in(each)
    elif hasattr(value, "untyped_storage"):
        yield value


def _patch_coordinator(engine: Engine, module: Any, patches: Patches, reporter: Reporter) -> None:
    """ZeRO's third stage gathers the parameters of a module before it is used, and releases them afterwards."""

    def around_fetch(original: Callable[..., Any]) -> Callable[..., Any]:
        def fetch_sub_module(coordinator: Any, submodule: Any, *args: Any, **kwargs: Any) -> Any:
            def learn(learner: Learner) -> None:
                for name, parameter in submodule.named_parameters(recurse=False):
                    if hasattr(parameter, "ds_tensor") and parameter.data.numel():
                        learner.learn_tensor(parameter.data, Category.UNSHARDED_PARAMETER, submodule, name)

            phase = Phase.PRE_FORWARD if graph_task_id() == -1 else Phase.PRE_BACKWARD
            return reporter.in_task(engine, phase, (submodule,), lambda: original(coordinator, submodule, *args, **kwargs), learn)

        return fetch_sub_module

    def around_release(original: Callable[..., Any]) -> Callable[..., Any]:
        def release_sub_module(coordinator: Any, submodule: Any, *args: Any, **kwargs: Any) -> Any:
            phase = Phase.POST_FORWARD if graph_task_id() == -1 else Phase.POST_BACKWARD
            return reporter.in_task(engine, phase, (submodule,), lambda: original(coordinator, submodule, *args, **kwargs))

        return release_sub_module

    patches.because("what ZeRO's third stage gathers and releases")
    patches.wrap(module.PartitionedParameterCoordinator, "fetch_sub_module", around_fetch)
    patches.wrap(module.PartitionedParameterCoordinator, "release_sub_module", around_release)


PATCHES: Final = {
    "deepspeed.runtime.zero.stage_1_and_2": _patch_optimizer("DeepSpeedZeroOptimizer"),
    "deepspeed.runtime.zero.stage3": _patch_optimizer(_STAGE3),
    "deepspeed.runtime.bf16_optimizer": _patch_optimizer("BF16_Optimizer"),
    "deepspeed.runtime.fp16.fused_optimizer": _patch_optimizer("FP16_Optimizer"),
    "deepspeed.runtime.fp16.unfused_optimizer": _patch_optimizer("FP16_UnfusedOptimizer"),
    "deepspeed.runtime.zero.partitioned_param_coordinator": _patch_coordinator,
}
"""By module of DeepSpeed: what is patched in it."""
