"""Everything the phantom world uses of torch that torch does not promise, in one place.

Known to hold for torch 2.11 to 2.13. Where a name is missing, importing this file raises ``UnsupportedTorchError`` with that name
in it; ``tests/phantom/test_phantom_torch_private.py`` exercises each one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
import torch.optim.optimizer
import torch.utils._device
import torch.utils._foreach_utils
import torch.utils._python_dispatch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.cuda import jiterator
from torch.utils import backend_registration

from memfit.errors import UnsupportedTorchError


def need(owner: Any, name: str) -> Any:
    """``owner.name``, or an error that names it."""
    found = getattr(owner, name, None)
    if found is None:
        raise UnsupportedTorchError(f"{getattr(owner, '__name__', owner)}.{name}", torch.__version__)
    return found


register_python_backend: Callable[..., None] = need(backend_registration, "_setup_privateuseone_for_python_backend")
"""Makes the PrivateUse1 device usable from Python: autograd then accepts its tensors on any build of torch."""

BackendHooks: Any = need(backend_registration, "_DummyPrivateUse1Hook")
BackendGuard: Any = need(backend_registration, "_DummyDeviceGuard")
private_backend_name: Callable[[], str] = need(torch._C, "_get_privateuse1_backend_name")

device_handlers: dict[Any, Callable[[Any], Any]] = need(fake_tensor, "_DISPATCH_META_HANDLERS")
"""How fake tensors answer questions from C++; one of them is the device."""

device_query: Any = torch.ops.prim.device.default
"""The question itself."""

_UNKNOWN_SHAPE: tuple[type[Exception], ...] = (
    need(fake_tensor, "UnsupportedOperatorException"),
    need(fake_tensor, "DynamicOutputShapeException"),
    need(fake_tensor, "DataDependentOutputException"),
    NotImplementedError,
)

need(fake_tensor, "init_gpu_context")
FAKE_TENSOR_MODULE = fake_tensor

is_dispatching_below: Callable[..., Any] = need(torch._C, "_ExcludeDispatchKeyGuard")
"""A guard under which the given dispatch keys are passed over in this thread."""

below_autograd: Callable[[], Any] = need(torch._C, "_AutoDispatchBelowAutograd")
"""A guard under which operators go straight to the dispatch modes."""

DispatchKey: Any = need(torch._C, "DispatchKey")
DispatchKeySet: Any = need(torch._C, "DispatchKeySet")

bucket_assignment: Callable[..., Any] = need(torch.distributed, "_compute_bucket_assignment_by_size")
"""How DDP puts gradients into buckets; it needs sizes only."""

run_engine: Callable[..., Any] = need(torch.autograd.graph, "_engine_run_backward")
"""A backward pass."""

ProfilerBase: Any = need(torch.profiler.profiler, "_KinetoProfile")
"""What every profiler of torch is; it asks CUDA's own for help if it is told to."""

jit_compilers: list[str] = [name for name in ("_create_jit_fn", "_create_multi_output_jit_fn") if hasattr(jiterator, name)]
"""How kernels are made from source; without them there is nothing to refuse."""

graph_task_id: Callable[[], int] = need(torch._C, "_current_graph_task_id")
"""The backward pass that runs in this thread, -1 outside one."""

current_node: Callable[[], Any] = need(torch._C, "_current_autograd_node")
"""The autograd node whose backward runs in this thread."""

next_sequence_nr: Callable[[], int] = need(torch._C._autograd, "_get_sequence_nr")
"""The number that this thread's next autograd node will have."""

optimizer_foreach_types: list[type] = need(sys.modules["torch.optim.optimizer"], "_foreach_supported_types")
"""The types of parameters for which optimizers choose their foreach form."""

clipping_foreach_types: list[type] = need(torch.utils._foreach_utils, "_foreach_supported_types")
"""The same, for gradient clipping."""

swap_insides: Callable[[torch.Tensor, torch.Tensor], None] = need(torch._C, "_swap_tensor_impl")
"""What ``torch.utils.swap_tensors`` does after its checks."""


factory_functions: Callable[[], set[Any]] = need(torch.utils._device, "_device_constructors")
"""The functions that follow a default device; torch asks once and keeps the answer."""

without_modes: Callable[[], Any] = need(torch.utils._python_dispatch, "_disable_current_modes")
"""A context in which no dispatch mode is active."""


def is_unknown_shape(error: BaseException) -> bool:
    """Is this what a fake tensor raises of an operator whose results it cannot tell?"""
    return isinstance(error, _UNKNOWN_SHAPE) or (type(error) is RuntimeError and "no fake impl registered" in str(error))


empty_strided: Callable[..., torch.Tensor] = need(need(torch._C, "_VariableFunctions"), "empty_strided")
"""As torch made it, whatever has been put in its place since."""

make_tensor_subclass: Callable[..., torch.Tensor] = need(torch.Tensor, "_make_subclass")
"""The same."""

forbid_writing_by_pointer: Callable[[torch.Tensor], None] = need(torch._C, "_set_throw_on_mutable_data_ptr")
"""A kernel that would write to a tensor without data raises instead."""


forget_fake_answers: Callable[[], None] = need(FakeTensorMode, "cache_clear")
"""Fake tensors of all modes share one memory of what operators returned."""


def num_recalled_by_torch() -> int:
    """How often fake tensors have answered from their own memory so far."""
    return int(need(FakeTensorMode, "cache_hits"))


def default_device_context() -> Any:
    """What ``torch.set_default_device`` left, ``None`` if nothing."""
    return getattr(need(torch, "_GLOBAL_DEVICE_CONTEXT"), "device_context", None)


def fake_store() -> Any:
    """The store of torch's fake process group, whose collectives need no peers."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def modules_that_ask_for_tracing() -> list[Any]:
    """Parts of torch that take fake tensors for a compiler at work, and then keep no caches and wait for every collective."""
    import torch.distributed.tensor  # whatever asks must have its own reference by now, or it would keep ours

    named = [module for name, module in list(sys.modules.items()) if name.startswith("torch.distributed")]
    found = [module for module in named if "_are_we_tracing" in vars(module)]
    if not found:
        raise UnsupportedTorchError("torch.distributed._functional_collectives._are_we_tracing", torch.__version__)
    return found


__all__ = [
    "FAKE_TENSOR_MODULE",
    "BackendGuard",
    "BackendHooks",
    "DispatchKey",
    "DispatchKeySet",
    "FakeTensor",
    "FakeTensorMode",
    "ProfilerBase",
    "below_autograd",
    "bucket_assignment",
    "clipping_foreach_types",
    "current_node",
    "default_device_context",
    "device_handlers",
    "device_query",
    "empty_strided",
    "factory_functions",
    "fake_store",
    "forbid_writing_by_pointer",
    "forget_fake_answers",
    "graph_task_id",
    "is_dispatching_below",
    "is_unknown_shape",
    "jit_compilers",
    "make_tensor_subclass",
    "modules_that_ask_for_tracing",
    "need",
    "next_sequence_nr",
    "num_recalled_by_torch",
    "optimizer_foreach_types",
    "private_backend_name",
    "register_python_backend",
    "run_engine",
    "swap_insides",
    "without_modes",
]
