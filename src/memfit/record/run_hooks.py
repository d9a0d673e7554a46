"""What a dispatch mode cannot see, seen by patching torch while somebody listens.

::

    nn.Module.__call__             which module runs, with all its arguments, also when it raises
    UntypedStorage.resize_         not an operator; FSDP frees and restores parameters with it
    torch.cuda.empty_cache         what is free goes back to the driver
    optimizer step hooks           torch's own, global
    FSDP2's FSDPParamGroup         unsharding and resharding, in forward and backward
    FSDP1's runtime functions      the same
    torch's distributed checkpoint state dicts, made and loaded
    DTensor's ShardingPropagator   runs operators on global shapes that no memory is ever used for

Installed when the first tracker enters and undone when the last one leaves. Every wrapper calls the original exactly once, whatever
happens to us, and passes on what it returns or raises.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from memfit.ledger import Phase
from memfit.record.listener import Listener
from memfit.torch_compat.autograd import graph_task_id
from memfit.torch_compat.distributed import SHARDING_PROPAGATION
from memfit.torch_compat.fsdp import (
    FSDP1_RUNTIME,
    PARAMETER_GROUPS,
    STATE_DICT_WORK,
    STATE_DICTS,
    flat_gradient_shard,
    loaded,
    unsharded_flat_parameters,
    unsharded_gradients,
    unsharded_parameters,
    unsharded_tensors,
)
from memfit.torch_compat.patches import Patches

_active: tuple[Listener, ...] = ()
"""Replaced, never changed: another thread may be going through it."""
_patches = Patches("the recorder")
_module_patches = Patches("the recorder")
_storage_patches = Patches("the recorder")
_patched: set[str] = set()
_lock = threading.RLock()


def attach(listener: Listener) -> None:
    """From now on the listener is told what happens."""
    global _active
    with _lock:
        if not _active:
            try:
                _install()
            except BaseException:
                _remove_patches()
                raise
        if listener.follows_modules and not any(other.follows_modules for other in _active):
            _module_patches.because("which module runs").wrap(nn.Module, "__call__", _module_call)
        if listener.follows_storages and not any(other.follows_storages for other in _active):
            because = "storages that are resized: no operator says so"
            _storage_patches.because(because).wrap(torch.UntypedStorage, "resize_", _storage_resize)
        _active = (*_active, listener)


def detach(listener: Listener) -> None:
    global _active
    with _lock:
        _active = tuple(other for other in _active if other is not listener)
        if not any(other.follows_modules for other in _active):
            _module_patches.undo()
        if not any(other.follows_storages for other in _active):
            _storage_patches.undo()
        if not _active:
            _remove_patches()


def detach_all() -> None:
    """In the child of a fork nobody listens any more; a thread of the parent may have held the lock."""
    global _active, _lock
    _active, _lock = (), threading.RLock()
    _remove_patches()


def _remove_patches() -> None:
    _module_patches.undo()
    _storage_patches.undo()
    _patches.undo()
    _patched.clear()


def _install() -> None:
    _patches.because("when the cache is emptied")
    for module in (torch.cuda, torch.cuda.memory, torch.accelerator):
        _patches.wrap(module, "empty_cache", _empty_cache)
    for handle in (register_optimizer_step_pre_hook(_before_step), register_optimizer_step_post_hook(_after_step)):
        _patches.finally_call(handle.remove)
    patch_loaded()


def patch_loaded() -> None:
    """Patches the optional parts of torch that the run has imported by now; called again where a run may have imported more."""
    with _lock:
        for name, patch in _OPTIONAL.items():
            module = loaded(name)
            if module is not None and name not in _patched:
                _patched.add(name)
                patch(module)


def _tell(listener: Listener, tell: Callable[..., Any], *args: Any) -> Any:
    """Calls one of the listener's methods; a failure is the listener's, never the run's."""
    listener.silence(+1)
    try:
        return tell(*args)
    except Exception as error:
        listener.fail(error)
        return None
    finally:
        listener.silence(-1)


def _listeners() -> list[Listener]:
    return [listener for listener in _active if listener.listening()]


def _readers_of_addresses() -> list[Listener]:
    return [listener for listener in _active if listener.reads_addresses and listener.listening()]


# -- modules, storages, optimizers -------------------------------------------------------------------------------------------


def _module_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        listeners = [listener for listener in _active if listener.follows_modules and listener.listening()]
        if not listeners:
            return original(module, *args, **kwargs)
        for listener in listeners:
            _tell(listener, listener.enter_module, module, args, kwargs)
        result = None
        try:
            result = original(module, *args, **kwargs)
        finally:
            for listener in listeners:
                if not listener.failed:
                    _tell(listener, listener.exit_module, module, args, result)
        return result

    return call


def seen_as_call(work: Callable[..., Any]) -> Callable[..., Any]:
    """For what computes a module again without calling it: takes the module before the arguments of ``work``, and tells whoever
    follows modules."""
    return _module_call(lambda module, *args, **kwargs: work(*args, **kwargs))


def _storage_resize(original: Callable[..., Any]) -> Callable[..., Any]:
    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        # To whoever knows the storage, in whatever thread: it may be working right now, and nothing here may silence it.
        for listener in _active:
            if not listener.failed:
                try:
                    listener.resized(storage)
                except Exception as error:
                    listener.fail(error)
        return result

    return resize_


def _empty_cache(original: Callable[..., Any]) -> Callable[..., Any]:
    def empty_cache() -> Any:
        result = original()
        for listener in _listeners():
            _tell(listener, listener.emptied_cache)
        return result

    return empty_cache


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for listener in _listeners():
        _tell(listener, listener.enter_optimizer, optimizer)


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for listener in _listeners():
        _tell(listener, listener.exit_optimizer, optimizer)


# -- FSDP2 -------------------------------------------------------------------------------------------------------------------

_FSDP2_PHASES = {
    "pre_forward": Phase.FSDP_PRE_FORWARD,
    "post_forward": Phase.FSDP_POST_FORWARD,
    "pre_backward": Phase.FSDP_PRE_BACKWARD,
    "post_backward": Phase.FSDP_POST_BACKWARD,
}


def _patch_fsdp2(groups: Any) -> None:
    _patches.because("what FSDP2 gathers, frees and reduces")
    for name, phase in _FSDP2_PHASES.items():
        _patches.wrap(groups.FSDPParamGroup, name, functools.partial(_fsdp2_call, phase))
    _patches.wrap(groups.FSDPParamGroup, "wait_for_unshard", _fsdp2_unsharded)


def _fsdp2_call(phase: Phase, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        # Before a forward, FSDP names the module: a grouped unit runs this for each of its own.
        modules = args[:1] if phase is Phase.FSDP_PRE_FORWARD and args else group.modules
        if phase is Phase.FSDP_POST_BACKWARD:
            for listener in _readers_of_addresses():
                _tell(listener, listener.learn_gradients_of_unit, group, list(unsharded_gradients(group)))
        return _in_fsdp_phase(phase, modules, lambda: original(group, *args, **kwargs), functools.partial(_learn_shards, group))

    return call


def _learn_shards(group: Any, listener: Listener) -> None:
    if listener.reads_addresses:
        return  # they stay until the optimizer's step, and are looked at there
    for managed in group.fsdp_params:
        if managed.sharded_param.grad is not None:
            listener.learn_gradient(managed.sharded_param.grad, managed.sharded_param)


def _fsdp2_unsharded(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait_for_unshard(group: Any) -> Any:
        result = original(group)
        for listener in _listeners():
            if listener.reads_addresses:
                _tell(listener, listener.learn_unit, group, unsharded_tensors(group), lambda: unsharded_parameters(group))
                continue
            for tensor, module, name in unsharded_parameters(group):
                _tell(listener, listener.learn_unsharded, tensor, module, name)
        return result

    return wait_for_unshard


# -- FSDP1 -------------------------------------------------------------------------------------------------------------------


def _patch_fsdp1(runtime: Any) -> None:
    _patches.because("what FSDP1 gathers, frees and reduces")
    _patches.wrap(runtime, "_unshard", _fsdp1_unshard)
    _patches.wrap(runtime, "_reshard", _fsdp1_reshard)
    _patches.wrap(runtime, "_reduce_grad", _fsdp1_reduce)


def _in_backward(forward: Phase, backward: Phase) -> Phase:
    return forward if graph_task_id() == -1 else backward


def _fsdp1_unshard(original: Callable[..., Any]) -> Callable[..., Any]:
    def unshard(state: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
        if not handle:
            return original(state, handle, *args, **kwargs)
        phase = _in_backward(Phase.FSDP_PRE_FORWARD, Phase.FSDP_PRE_BACKWARD)

        def learn(listener: Listener) -> None:
            for tensor in unsharded_flat_parameters(handle):
                listener.learn_unsharded(tensor, handle._fully_sharded_module, "flat_param")

        return _in_fsdp_phase(phase, (handle._fully_sharded_module,), lambda: original(state, handle, *args, **kwargs), learn)

    return unshard


def _fsdp1_reshard(original: Callable[..., Any]) -> Callable[..., Any]:
    def reshard(state: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
        phase = _in_backward(Phase.FSDP_POST_FORWARD, Phase.FSDP_POST_BACKWARD)
        return _in_fsdp_phase(phase, (handle._fully_sharded_module,), lambda: original(state, handle, *args, **kwargs))

    return reshard


def _fsdp1_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_grad(state: Any, handle: Any) -> Any:
        def learn(listener: Listener) -> None:
            found = flat_gradient_shard(handle)
            if found is not None:
                listener.learn_gradient(*found)

        modules = (handle._fully_sharded_module,)
        for listener in _readers_of_addresses():
            if handle.flat_param.grad is not None:
                _tell(listener, listener.learn_gradients_of_unit, handle, ((handle.flat_param.grad, handle.flat_param),))
        return _in_fsdp_phase(Phase.FSDP_POST_BACKWARD, modules, lambda: original(state, handle), learn)

    return reduce_grad


def _in_fsdp_phase(phase: Phase, modules: Any, work: Callable[[], Any], learn: Callable[[Listener], None] | None = None) -> Any:
    """Runs FSDP's own work as a scope of the units' first module, then looks at what it left."""
    opened = [(listener, _tell(listener, listener.enter_fsdp, phase, modules)) for listener in _listeners()]
    try:
        return work()
    finally:
        for listener, depth in opened:
            if not listener.failed and depth is not None:
                if learn is not None:
                    _tell(listener, learn, listener)
                _tell(listener, listener.exit_fsdp, depth)


# -- state dicts -------------------------------------------------------------------------------------------------------------


def in_checkpoint(work: Callable[[], Any]) -> Any:
    """Does ``work`` as the saving or loading of a state dict."""
    return _in_fsdp_phase(Phase.CHECKPOINT, (), work)


def _patch_state_dicts(state_dicts: Any) -> None:
    _patches.because("state dicts that are made and loaded")
    for name in STATE_DICT_WORK:
        _patches.wrap(state_dicts, name, lambda original: lambda *args, **kwargs: in_checkpoint(lambda: original(*args, **kwargs)))


# -- DTensor -----------------------------------------------------------------------------------------------------------------


def _patch_dtensor(propagation: Any) -> None:
    _patches.because("operators that only compute shapes")
    _patches.wrap(propagation.ShardingPropagator, "_propagate_tensor_meta_non_cached", _shape_propagation)


def _shape_propagation(original: Callable[..., Any]) -> Callable[..., Any]:
    def propagate(*args: Any, **kwargs: Any) -> Any:
        silenced = _active
        for listener in silenced:
            listener.silence(+1)
        try:
            return original(*args, **kwargs)
        finally:
            for listener in silenced:
                listener.silence(-1)

    return propagate


_OPTIONAL = {
    PARAMETER_GROUPS: _patch_fsdp2,
    FSDP1_RUNTIME: _patch_fsdp1,
    STATE_DICTS: _patch_state_dicts,
    SHARDING_PROPAGATION: _patch_dtensor,
}
