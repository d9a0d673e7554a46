"""What ``torch.cuda`` has beside its answers: markers, sensors, memory history, tensor types; what torch remembers of it; and what
data tell torch."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memfit.phantom.device.streams import PrivatePool
from memfit.phantom.passthrough.refusals import refuse
from memfit.phantom.tensors.tensor_annotations import CONSTANT
from memfit.phantom.values.assumptions import Assumptions, Expected
from memfit.torch_compat.devices import REMEMBER_THE_GPU, ProfilerBase, factory_functions
from memfit.torch_compat.fake_tensors import forget_fake_answers
from memfit.torch_compat.patches import Patches
from memfit.torch_compat.versions import need_in

need_in(torch.optim.LBFGS.__module__, "_strong_wolfe")

# -- markers and profilers, which find nothing to do -------------------------------------------------------------------------------


def install_markers(patches: Patches) -> None:
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        patches.replace(torch.cuda.nvtx, name, lambda *args, **kwargs: 0)
    for name in ("start", "stop"):
        patches.replace(torch.cuda.profiler, name, lambda: None)
    patches.replace(torch.autograd.profiler, "emit_nvtx", _NoMarkers)
    profile = ProfilerBase.__init__

    def profile_the_host(self: Any, *, activities: Any = None, **kwargs: Any) -> None:
        """CUDA's own profiler would complain of its absence at every operator."""
        profile(self, activities=[torch.profiler.ProfilerActivity.CPU], **kwargs)

    patches.replace(ProfilerBase, "__init__", profile_the_host)


class _NoMarkers(contextlib.nullcontext[None]):
    """``torch.autograd.profiler.emit_nvtx``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


# -- loss scalers: whether a gradient overflows, only data can tell ----------------------------------------------------------------


def install_loss_scaler(patches: Patches, assumptions: Assumptions, expected: Expected) -> None:
    """``torch.amp.GradScaler`` skips as many of each optimizer's steps as ``overflows`` says, from the first on."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        skipped: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

        def _maybe_opt_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            overflows = expected.overflows
            if skipped.get(optimizer, 0) < overflows:
                skipped[optimizer] = skipped.get(optimizer, 0) + 1
                return None
            assumptions.add_name(_OVERFLOWS, "none" if not overflows else f"{overflows}")
            return original(self, optimizer, *args, **kwargs)

        return _maybe_opt_step

    patches.wrap(torch.amp.GradScaler, "_maybe_opt_step", around)


_OVERFLOWS = (
    "steps that a loss scaler skips because a gradient overflows (on a GPU often the first ones, until the scale has fallen: then "
    "optimizer state comes later, and reserved memory may differ; --expected overflows=2)"
)


# -- L-BFGS: when it is content with a step, only data can tell --------------------------------------------------------------------


def install_lbfgs(patches: Patches, assumptions: Assumptions) -> None:
    """``torch.optim.LBFGS`` makes all the iterations that it may, and keeps the direction of each; a search along a line tries two
    points."""
    running: list[torch.optim.LBFGS] = []

    def around_step(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: torch.optim.LBFGS, closure: Callable[[], Any]) -> Any:
            assumptions.add(_LBFGS_GOES_ON)
            (group,) = self.param_groups
            chosen = {name: group[name] for name in ("tolerance_grad", "tolerance_change")}
            group.update(dict.fromkeys(chosen, -math.inf))
            running.append(self)
            try:
                return original(self, closure)
            finally:
                running.pop()
                group.update(chosen)

        return step

    def around_search(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, max_ls=1, **kwargs: original(*args, max_ls=min(max_ls, 1), **kwargs)

    def around_dot(original: Callable[..., Any]) -> Callable[..., Any]:
        def dot(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            product: torch.Tensor = original(self, other)
            if running and product.is_cuda:
                setattr(product, CONSTANT, 1.0)  # a direction is kept where the loss is curved upwards along it
            return product

        return dot

    patches.wrap(torch.optim.LBFGS, "step", around_step)
    patches.wrap(sys.modules[torch.optim.LBFGS.__module__], "_strong_wolfe", around_search)
    patches.wrap(torch.Tensor, "dot", around_dot)


_LBFGS_GOES_ON = (
    "L-BFGS makes all the iterations that each of its steps may have (max_iter): one that is content sooner calls its closure less "
    "often, and keeps fewer directions"
)


# -- transformers of torch.nn, which have a path of their own for evaluation -----------------------------------------------------


def install_transformers(patches: Patches, assumptions: Assumptions) -> None:
    """``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` are computed in evaluation as they are in training."""

    def get_fastpath_enabled() -> bool:
        if not torch.is_grad_enabled():
            assumptions.add(_AS_IN_TRAINING)
        return False

    patches.replace(torch.backends.mha, "get_fastpath_enabled", get_fastpath_enabled)


_AS_IN_TRAINING = (
    "torch.nn's transformers were evaluated as they are trained, without the fused path that they have for evaluation: there the "
    "GPU takes a third less, and up to three times as much where padding is masked"
)


# -- what a driver would tell: sensors of a GPU at work, NCCL's version, the CUDA runtime ------------------------------------------


NCCL_VERSION = (2, 28, 9)
"""Of torch 2.11.0+cu130."""

_BUSY = {"utilization": 100, "memory_usage": 50, "temperature": 60, "power_draw": 500_000, "clock_rate": 1500}
"""Per cent, per cent, degrees, milliwatts, megahertz: a GPU at work."""


def install_sensors(patches: Patches) -> None:
    for name, value in _BUSY.items():
        patches.replace(torch.cuda, name, lambda device=None, value=value: value)
    patches.replace(torch.cuda, "cudart", Runtime)
    patches.replace(torch.cuda.nccl, "version", lambda: NCCL_VERSION)
    patches.replace(torch.cuda.nccl, "is_available", lambda tensors: True)
    for name in ("set_sync_debug_mode", "check_error"):
        patches.replace(torch.cuda, name, lambda *args, **kwargs: None)
    patches.replace(torch.cuda, "get_sync_debug_mode", lambda: 0)


class Runtime:
    """``torch.cuda.cudart()``: what scripts call of it by name succeeds, the rest needs a driver."""

    class cudaError:
        success = 0

    def cudaProfilerStart(self) -> int:
        return 0

    def cudaProfilerStop(self) -> int:
        return 0

    def cudaHostRegister(self, *args: Any) -> int:
        return 0

    def cudaHostUnregister(self, *args: Any) -> int:
        return 0

    def cudaMemGetInfo(self, device: Any = None) -> tuple[int, int]:
        return torch.cuda.mem_get_info(device)

    def __getattr__(self, name: str) -> Any:
        refuse(f"torch.cuda.cudart().{name}", "Leave the call out of the prediction.")


# -- memory history and snapshots, which are passed over, and pools ----------------------------------------------------------------


_SNAPSHOT = "torch.cuda.memory's history and snapshots were passed over: the ledger has all of it (memfit export)"


def install_memory_tools(patches: Patches, assumptions: Assumptions) -> None:
    _pass_over_history(patches, assumptions)
    _install_pools(patches)


def _pass_over_history(patches: Patches, assumptions: Assumptions) -> None:
    def snapshot(*args: Any, **kwargs: Any) -> dict[str, Any]:
        assumptions.add(_SNAPSHOT)
        return {"segments": [], "device_traces": [], "allocator_settings": {}}

    def dump(*args: Any, **kwargs: Any) -> None:
        assumptions.add(_SNAPSHOT)

    patches.replace(torch.cuda.memory, "_record_memory_history", dump)
    patches.replace(torch.cuda.memory, "_snapshot", snapshot)
    patches.replace(torch.cuda.memory, "_dump_snapshot", dump)
    for module in (torch.cuda, torch.cuda.memory):
        patches.replace(module, "memory_snapshot", lambda *args, **kwargs: snapshot()["segments"])


def _install_pools(patches: Patches) -> None:
    class MemPool(PrivatePool):
        """``torch.cuda.MemPool``: a pool of its own."""

        allocator = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(takes_backward=False)  # use_mem_pool is about the current thread

        def use_count(self) -> int:
            return 1

        def snapshot(self, *args: Any, **kwargs: Any) -> list[Any]:
            return []

    @contextlib.contextmanager
    def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
        pool.begin()
        try:
            yield
        finally:
            pool.end()

    for module in (torch.cuda, torch.cuda.memory):
        patches.replace(module, "MemPool", MemPool)
        patches.replace(module, "use_mem_pool", use_mem_pool)


# -- torch.cuda.FloatTensor and others ---------------------------------------------------------------------------------------------


_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Bool": torch.bool,
}


class _LegacyType(type):
    """Makes tensors, and knows its own."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        return torch.empty(args, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def install_tensor_types(patches: Patches) -> None:
    kinds = {f"{name}Tensor": _LegacyType(f"{name}Tensor", (), {"dtype": dtype}) for name, dtype in _DTYPES.items()}
    for name, kind in kinds.items():
        patches.replace(torch.cuda, name, kind)
    ask, set_default = torch.Tensor.type, torch.set_default_tensor_type

    @functools.wraps(ask)
    def type_(tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None and tensor.is_cuda:
            return next((f"torch.cuda.{name}" for name, kind in kinds.items() if isinstance(tensor, kind)), ask(tensor))
        wanted = _find(kinds, dtype)
        return ask(tensor, dtype, *args, **kwargs) if wanted is None else tensor.to("cuda", wanted.dtype)

    @functools.wraps(set_default)
    def set_default_tensor_type(kind: Any) -> None:
        wanted = _find(kinds, kind)
        if wanted is None:
            set_default(kind)
        else:
            torch.set_default_dtype(wanted.dtype)
            torch.set_default_device("cuda")

    patches.replace(torch.Tensor, "type", type_)
    patches.replace(torch, "set_default_tensor_type", set_default_tensor_type)


def _find(kinds: dict[str, _LegacyType], named: Any) -> _LegacyType | None:
    if isinstance(named, str):
        return kinds.get(named.removeprefix("torch.cuda.")) if named.startswith("torch.cuda.") else None
    return named if isinstance(named, _LegacyType) else None


# -- what torch remembers of the machine: it holds inside the world or outside it, not both ----------------------------------------


def install_cached_answers(patches: Patches) -> None:
    # Kept for good: which functions a default device concerns. Asked for later, it would be our stand-ins.
    factory_functions()
    _forget()
    patches.finally_call(_forget)


def _forget() -> None:
    # What fake tensors remember of their operators depends on the current device, and on our kernels.
    forget_fake_answers()
    for name in REMEMBER_THE_GPU:
        for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
            if hasattr(value, "cache_clear") and hasattr(value, "cache_info"):
                value.cache_clear()
