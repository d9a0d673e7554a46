"""Patches torch to report what a dispatch mode cannot see, while there are listeners.

::

    nn.Module.__call__             which module runs, with all its arguments, also when it raises
    UntypedStorage.resize_         not an operator; some engines free and restore parameters with it
    torch.cuda.empty_cache         cached memory is returned to the driver
    optimizer step hooks           torch's own, global
    an engine's own hooks          what it gathers, frees and reduces around a unit: memfit.engines
    torch's distributed checkpoint state dicts, made and loaded
    DTensor's ShardingPropagator   runs operators on global shapes, which use no memory

Installed when the first tracker enters and undone when the last one leaves. Every wrapper calls the original exactly once, even if
a listener fails, and passes on what it returns or raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from memfit.engines import ENGINES, Engine
from memfit.ledger import Phase
from memfit.record.listener import Listener, ModuleListener, StorageListener
from memfit.torch_compat.distributed import SHARDING_PROPAGATION
from memfit.torch_compat.fsdp import STATE_DICT_WORK, STATE_DICTS, loaded
from memfit.torch_compat.patches import Patches

_Told = TypeVar("_Told", bound=Listener)


class _Subscription(Generic[_Told]):
    """The listeners of one kind, and the wrapper that is installed while there are any."""

    def __init__(self, kind: type[_Told], owner: Any, name: str, wrap: Callable[..., Any], because: str) -> None:
        self.listeners: tuple[_Told, ...] = ()
        """Replaced, never changed: another thread may be going through it."""
        self._kind, self._owner, self._name, self._wrap, self._because = kind, owner, name, wrap, because
        self._patches = Patches("the recorder")

    def add(self, listener: Listener) -> None:
        if isinstance(listener, self._kind):
            if not self.listeners:
                self._patches.because(self._because).wrap(self._owner, self._name, self._wrap)
            self.listeners = (*self.listeners, listener)

    def keep(self, active: tuple[Listener, ...]) -> None:
        """Removes the listeners that are not in ``active``, and the wrapper if none is left."""
        self.listeners = tuple(listener for listener in self.listeners if listener in active)
        if not self.listeners:
            self._patches.undo()


_active: tuple[Listener, ...] = ()
"""Replaced, never changed: another thread may be going through it."""
_patches = Patches("the recorder")
_patched: set[str] = set()
_lock = threading.RLock()


def attach(listener: Listener) -> None:
    """Reports to the listener from now on."""
    global _active
    with _lock:
        if not _active:
            try:
                _install()
            except BaseException:
                _remove_patches()
                raise
        for subscription in (_module_calls, _storage_resizes):
            subscription.add(listener)
        _active = (*_active, listener)


def detach(listener: Listener) -> None:
    global _active
    with _lock:
        _active = tuple(other for other in _active if other is not listener)
        for subscription in (_module_calls, _storage_resizes):
            subscription.keep(_active)
        if not _active:
            _remove_patches()


def detach_all() -> None:
    """For the child of a fork: removes all listeners. Replaces the lock, which a thread of the parent may have held."""
    global _active, _lock
    _active, _lock = (), threading.RLock()
    _remove_patches()


def _remove_patches() -> None:
    for subscription in (_module_calls, _storage_resizes):
        subscription.keep(())
    _patches.undo()
    _patched.clear()


def _install() -> None:
    _patches.because("when the cache is emptied")
    for module in (torch.cuda, torch.cuda.memory, torch.accelerator):
        _patches.wrap(module, "empty_cache", _empty_cache)
    for handle in (register_optimizer_step_pre_hook(_before_step), register_optimizer_step_post_hook(_after_step)):
        _patches.finally_call(handle.remove)
    patch_loaded()
    for name in {name for engine in ENGINES.values() for name in engine.hooks() if loaded(name) is None}:
        # What an engine makes before the first forward counts too.
        _patches.when_imported(name, lambda module: patch_loaded(module))


def patch_loaded(imported: Any = None) -> None:
    """Patches the optional parts of torch that the run has imported by now, ``imported`` at this moment; called again where a run
    may have imported more."""
    with _lock:
        for engine in ENGINES.values():
            for name, hook in engine.hooks().items():
                if (module := _not_yet_patched(name, imported)) is not None:
                    hook(module, _patches, _engines)
        for name, patch in _OPTIONAL.items():
            if (module := _not_yet_patched(name, imported)) is not None:
                patch(module)


def _not_yet_patched(name: str, imported: Any) -> Any | None:
    """The module if the run has imported it and it is not patched yet, else ``None``. Marks it as patched."""
    module = imported if getattr(imported, "__name__", None) == name else loaded(name)
    if module is None or name in _patched:
        return None
    _patched.add(name)
    return module


def _tell(listener: Listener, tell: Callable[..., Any], *args: Any) -> Any:
    """Calls one of the listener's methods. An exception ends the listener, never the run."""
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


# -- modules, storages, optimizers -------------------------------------------------------------------------------------------


def _module_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # torch's profiler takes the module from ``self``
        listeners = [listener for listener in _module_calls.listeners if listener.listening()]
        if not listeners:
            return original(self, *args, **kwargs)
        for listener in listeners:
            _tell(listener, listener.enter_module, self, args, kwargs)
        result = None
        try:
            result = original(self, *args, **kwargs)
        finally:
            for listener in listeners:
                if not listener.failed:
                    _tell(listener, listener.exit_module, self, args, result)
        return result

    return call


def seen_as_call(work: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``work``, which computes a module again without calling it, so that listeners hear of a module call. The result takes
    the module before the arguments of ``work``."""
    return _module_call(lambda module, *args, **kwargs: work(*args, **kwargs))


def _storage_resize(original: Callable[..., Any]) -> Callable[..., Any]:
    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        # Notify listeners on every thread; do not silence them, they may be mid-operator.
        for listener in _storage_resizes.listeners:
            if not listener.failed:
                try:
                    listener.resized(storage)
                except Exception as error:
                    listener.fail(error)
        return result

    return resize_


_module_calls = _Subscription(ModuleListener, nn.Module, "__call__", _module_call, "which module runs")
_storage_resizes = _Subscription(
    StorageListener, torch.UntypedStorage, "resize_", _storage_resize, "storages that are resized: no operator says so"
)


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


# -- engines and state dicts ---------------------------------------------------------------------------------------------------


class _Engines:
    """Passes the reports of engines' hooks on to all listeners: the ``Reporter`` of ``memfit.engines``."""

    def in_task(
        self,
        engine: Engine | None,
        phase: Phase,
        modules: Sequence[Any],
        work: Callable[[], Any],
        learn: Callable[[Any], None] | None = None,
    ) -> Any:
        opened = [(listener, _tell(listener, listener.enter_task, engine, phase, modules)) for listener in _listeners()]
        try:
            return work()
        finally:
            opened = [(listener, depth) for listener, depth in opened if not listener.failed and depth is not None]
            if learn is not None:
                for listener, _ in opened:
                    _tell(listener, learn, listener)
            for listener, depth in reversed(opened):
                _tell(listener, listener.exit_task, depth)

    def tell_whole_parameters(self, unit: object, tensors: Sequence[Any], described: Callable[[], Iterable[Any]]) -> None:
        for listener in _listeners():
            _tell(listener, listener.learn_unit, unit, tensors, described)

    def tell_whole_gradients(self, unit: object, gradients: Callable[[], Sequence[Any]]) -> None:
        for listener in _listeners():
            _tell(listener, listener.learn_gradients_of_unit, unit, gradients)


_engines: Final = _Engines()


def in_checkpoint(work: Callable[[], Any]) -> Any:
    """Runs ``work`` as a scope of saving or loading a state dict."""
    return _engines.in_task(None, Phase.CHECKPOINT, (), work)


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


# -- caches of keys and values -----------------------------------------------------------------------------------------------


def _patch_caches(caches: Any) -> None:
    _patches.because("keys and values that are cached")
    for layer in vars(caches).values():
        if isinstance(layer, type) and issubclass(layer, caches.CacheLayerMixin) and "update" in vars(layer):
            _patches.wrap(layer, "update", _cache_update)


def _cache_update(original: Callable[..., Any]) -> Callable[..., Any]:
    def update(layer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(layer, *args, **kwargs)
        if not torch.is_grad_enabled():  # with gradients, what is cached is kept for backward, and is an activation
            for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None)):
                if isinstance(tensor, torch.Tensor):
                    for listener in _listeners():
                        _tell(listener, listener.learn_cached, tensor)
        return result

    return update


_OPTIONAL = {
    "transformers.cache_utils": _patch_caches,
    STATE_DICTS: _patch_state_dicts,
    SHARDING_PROPAGATION: _patch_dtensor,
}
