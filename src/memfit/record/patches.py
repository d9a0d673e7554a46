"""What a dispatch mode cannot see, seen by patching torch while a tracker is active.

::

    nn.Module.__call__             which module runs, with all its arguments, also when it raises
    UntypedStorage.resize_         not an operator; FSDP frees and restores parameters with it
    optimizer step hooks           torch's own, global
    FSDP2's FSDPParamGroup         unsharding and resharding, in forward and backward
    FSDP1's runtime functions      the same
    DTensor's ShardingPropagator   runs operators on global shapes that no memory is ever used for

Installed when the first tracker enters and undone when the last one leaves. Every wrapper calls the original exactly once, whatever
happens to us, and passes on what it returns or raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from memfit.ledger import Phase
from memfit.record.fsdp_private import loaded, unsharded_flat_parameters, unsharded_parameters
from memfit.record.recorder import Recorder
from memfit.record.torch_private import graph_task_id

_active: list[Recorder] = []
_undo: list[Callable[[], None]] = []


def attach(recorder: Recorder) -> None:
    """From now on the recorder is told what happens."""
    if not _active:
        _install()
    _active.append(recorder)


def detach(recorder: Recorder) -> None:
    _active.remove(recorder)
    if not _active:
        while _undo:
            _undo.pop()()


def _install() -> None:
    _replace(nn.Module, "__call__", _module_call)
    _replace(torch.UntypedStorage, "resize_", _storage_resize)
    for handle in (register_optimizer_step_pre_hook(_before_step), register_optimizer_step_post_hook(_after_step)):
        _undo.append(handle.remove)
    if groups := loaded("torch.distributed.fsdp._fully_shard._fsdp_param_group"):
        for name, phase in _FSDP2_PHASES.items():
            _replace(groups.FSDPParamGroup, name, functools.partial(_fsdp2_call, phase))
        _replace(groups.FSDPParamGroup, "wait_for_unshard", _fsdp2_unsharded)
    if runtime := loaded("torch.distributed.fsdp._runtime_utils"):
        _replace(runtime, "_unshard", _fsdp1_unshard)
        _replace(runtime, "_reshard", _fsdp1_reshard)
        _replace(runtime, "_reduce_grad", _fsdp1_reduce)
    if propagation := loaded("torch.distributed.tensor._sharding_prop"):
        _replace(propagation.ShardingPropagator, "_propagate_tensor_meta_non_cached", _shape_propagation)


def _replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts ``make(original)`` in the place of ``owner.name``, to be undone exactly."""
    inherited = name not in vars(owner)
    original = getattr(owner, name)
    wrapper = functools.wraps(original)(make(original))
    setattr(owner, name, wrapper)

    def undo() -> None:
        if vars(owner).get(name) is not wrapper:
            return  # somebody patched on top of us and will put our wrapper back; with no tracker active it only passes on
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    _undo.append(undo)


def _tell(recorder: Recorder, tell: Callable[..., Any], *args: Any) -> Any:
    """Calls one of the recorder's methods; a failure is the recorder's, never the run's."""
    try:
        return tell(*args)
    except Exception as error:
        recorder.fail(error)
        return None


def _listeners() -> list[Recorder]:
    return [recorder for recorder in _active if recorder.listening()]


# -- modules, storages, optimizers -------------------------------------------------------------------------------------------


def _module_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        recorders = _listeners()
        if not recorders:
            return original(module, *args, **kwargs)
        for recorder in recorders:
            _tell(recorder, recorder.enter_module, module, args, kwargs)
        result = None
        try:
            result = original(module, *args, **kwargs)
        finally:
            for recorder in recorders:
                if not recorder.failed:
                    _tell(recorder, recorder.exit_module, module, result)
        return result

    return call


def _storage_resize(original: Callable[..., Any]) -> Callable[..., Any]:
    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        for recorder in _active:
            if not recorder.failed:
                _tell(recorder, recorder.resized, storage)
        return result

    return resize_


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for recorder in _listeners():
        _tell(recorder, recorder.enter_optimizer, optimizer)


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for recorder in _listeners():
        _tell(recorder, recorder.exit_optimizer, optimizer)


# -- FSDP2 -------------------------------------------------------------------------------------------------------------------

_FSDP2_PHASES = {
    "pre_forward": Phase.FSDP_PRE_FORWARD,
    "post_forward": Phase.FSDP_POST_FORWARD,
    "pre_backward": Phase.FSDP_PRE_BACKWARD,
    "post_backward": Phase.FSDP_POST_BACKWARD,
}


def _fsdp2_call(phase: Phase, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        return _in_fsdp_phase(
            phase, group.modules, lambda: original(group, *args, **kwargs), functools.partial(_learn_shards, group)
        )

    return call


def _learn_shards(group: Any, recorder: Recorder) -> None:
    for managed in group.fsdp_params:
        if managed.sharded_param.grad is not None:
            recorder.roles.learn_gradient(managed.sharded_param.grad, managed.sharded_param)


def _fsdp2_unsharded(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait_for_unshard(group: Any) -> Any:
        result = original(group)
        for recorder in _listeners():
            for tensor, module, name in unsharded_parameters(group):
                _tell(recorder, recorder.learn_unsharded, tensor, module, name)
        return result

    return wait_for_unshard


# -- FSDP1 -------------------------------------------------------------------------------------------------------------------


def _in_backward(forward: Phase, backward: Phase) -> Phase:
    return forward if graph_task_id() == -1 else backward


def _fsdp1_unshard(original: Callable[..., Any]) -> Callable[..., Any]:
    def unshard(state: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
        if not handle:
            return original(state, handle, *args, **kwargs)
        phase = _in_backward(Phase.FSDP_PRE_FORWARD, Phase.FSDP_PRE_BACKWARD)

        def learn(recorder: Recorder) -> None:
            for tensor in unsharded_flat_parameters(handle):
                recorder.learn_unsharded(tensor, handle._fully_sharded_module, "flat_param")

        return _in_fsdp_phase(phase, (handle._fully_sharded_module,), lambda: original(state, handle, *args, **kwargs), learn)

    return unshard


def _fsdp1_reshard(original: Callable[..., Any]) -> Callable[..., Any]:
    def reshard(state: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
        phase = _in_backward(Phase.FSDP_POST_FORWARD, Phase.FSDP_POST_BACKWARD)
        return _in_fsdp_phase(phase, (handle._fully_sharded_module,), lambda: original(state, handle, *args, **kwargs))

    return reshard


def _fsdp1_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_grad(state: Any, handle: Any) -> Any:
        def learn(recorder: Recorder) -> None:
            shard = getattr(handle.flat_param, "_saved_grad_shard", None)
            if shard is not None:
                recorder.roles.learn_gradient(shard, handle.flat_param._local_shard)

        modules = (handle._fully_sharded_module,)
        return _in_fsdp_phase(Phase.FSDP_POST_BACKWARD, modules, lambda: original(state, handle), learn)

    return reduce_grad


def _in_fsdp_phase(phase: Phase, modules: Any, work: Callable[[], Any], learn: Callable[[Recorder], None] | None = None) -> Any:
    """Runs FSDP's own work as a scope of the units' first module, then looks at what it left."""
    opened = [(recorder, _tell(recorder, recorder.enter_fsdp, phase, modules)) for recorder in _listeners()]
    try:
        return work()
    finally:
        for recorder, depth in opened:
            if not recorder.failed and depth is not None:
                if learn is not None:
                    _tell(recorder, learn, recorder)
                _tell(recorder, recorder.exit_fsdp, depth)


# -- DTensor -----------------------------------------------------------------------------------------------------------------


def _shape_propagation(original: Callable[..., Any]) -> Callable[..., Any]:
    def propagate(*args: Any, **kwargs: Any) -> Any:
        silenced = list(_active)
        for recorder in silenced:
            recorder.silence(+1)
        try:
            return original(*args, **kwargs)
        finally:
            for recorder in silenced:
                recorder.silence(-1)

    return propagate
