"""Dispatch modes and dispatch keys."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch._library import autograd, custom_ops
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from memfit.torch_compat.versions import need

modes_of_this_thread: Callable[[], list[TorchDispatchMode]] = need(_python_dispatch, "_get_current_dispatch_mode_stack")
"""The dispatch modes that see this thread's operators, innermost last. Autograd hands them on to its own threads."""

without_modes: Callable[[], Any] = need(_python_dispatch, "_disable_current_modes")
"""A context in which no dispatch mode is active."""

excluding_keys: Callable[..., Any] = need(torch._C, "_ExcludeDispatchKeyGuard")
"""A guard under which the given dispatch keys are passed over in this thread."""

_with_exclusion: Callable[..., Any] = need(torch._C, "_SetExcludeDispatchKeyGuard")


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """For dispatch modes: an alias without a graph, that notices when the tensor is changed in place. Below autograd, torch does
    not let aliases share their version unless it is asked to."""
    with _with_exclusion(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()


def below_views() -> Any:
    """A context in which an alias of a tensor is no view of it: each has a version of its own, as one has that C++ makes of a
    storage."""
    return _with_exclusion(torch._C.DispatchKey.ADInplaceOrView, True)


has_kernel: Callable[[str, str], bool] = need(torch._C, "_dispatch_has_kernel_for_dispatch_key")
"""Has an operator a kernel of its own for a dispatch key?"""

all_operator_names: Callable[[], list[str]] = need(torch._C, "_dispatch_get_all_op_names")
"""Every operator that torch knows, those of other libraries too: ``mylib::double.out``."""

without_subclass_functions: Callable[..., Any] = need(torch._C, "DisableTorchFunctionSubclass")
"""A context in which classes of tensors do not see functions; they still see operators."""

DispatchKey: Any = need(torch._C, "DispatchKey")
DispatchKeySet: Any = need(torch._C, "DispatchKeySet")

CONTROL_FLOW = {
    "cond": ("torch._higher_order_ops.cond",),
    "while_loop": ("torch._higher_order_ops.while_loop", "torch._higher_order_ops"),
}
"""Functions that run a part of a script as one operator, and the modules that scripts import them from."""

# -- entering and leaving modes in any order, in any thread ----------------------------------------------------------------------

_FLAGS = [
    name
    for name in (
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
        "_is_in_any_mode_without_ignore_compile_internals",
    )
    if hasattr(_python_dispatch, name)
]
"""Torch notes in these, once for all threads, that some mode is active; a mode puts back what it found when it was entered."""

_lock = threading.Lock()
_num_entered = 0
_flags_before: dict[str, bool] = {}


def enter_mode(mode: TorchDispatchMode) -> None:
    """Makes a mode the innermost of this thread."""
    global _num_entered
    with _lock:
        if _num_entered == 0:
            _flags_before.update(flags_of_modes())
        _num_entered += 1
        TorchDispatchMode.__enter__(mode)


def leave_mode(mode: TorchDispatchMode) -> None:
    """Takes a mode out of this thread's, wherever among them it is."""
    global _num_entered
    with _lock:
        stack = modes_of_this_thread()
        above = stack[stack.index(mode) + 1 :]
        for inner in reversed(above):
            TorchDispatchMode.__exit__(inner, None, None, None)
        TorchDispatchMode.__exit__(mode, None, None, None)
        for inner in above:
            TorchDispatchMode.__enter__(inner)
        _num_entered -= 1
        if _num_entered == 0 and not above:
            put_flags_back(_flags_before)


def flags_of_modes() -> dict[str, bool]:
    """What torch has noted, for ``put_flags_back``."""
    return {name: getattr(_python_dispatch, name) for name in _FLAGS}


def put_flags_back(flags: dict[str, bool]) -> None:
    """With modes in several threads, what the last one found when it was entered says nothing of what was there before all."""
    for name, value in flags.items():
        setattr(_python_dispatch, name, value)
    tell_compiler = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None)
    if tell_compiler is not None:
        tell_compiler(flags["_is_in_any_mode_without_ignore_compile_internals"])


def _renew_lock() -> None:
    """The child of a fork may have been given a lock that a thread of its parent held."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)

__all__ = [
    "CONTROL_FLOW",
    "DispatchKey",
    "DispatchKeySet",
    "HigherOrderOperator",
    "OpOverload",
    "TorchDispatchMode",
    "all_operator_names",
    "below_views",
    "detached",
    "enter_mode",
    "excluding_keys",
    "flags_of_modes",
    "has_kernel",
    "leave_mode",
    "modes_of_this_thread",
    "put_flags_back",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "without_modes",
    "without_subclass_functions",
]


CustomOperator: Any = need(custom_ops, "CustomOpDef")
custom_operators: MutableMapping[str, Any] = need(custom_ops, "OPDEFS")
"""Those that are defined, by name."""

_make_autograd: Callable[[Any, Any], Callable[..., Any]] = need(autograd, "make_autograd_impl")
_below_autograd: Any = need(torch._C, "_after_autograd_keyset")


def qualified_name(operator: Any) -> str:
    """``mylib::double``."""
    return str(operator._qualname)


def function_for_cuda(operator: Any) -> Callable[..., Any] | None:
    """The Python function that runs where its tensors are on a GPU, if there is one."""
    functions: dict[str | None, Callable[..., Any]] = operator._backend_fns
    return functions.get("cuda", functions.get(None))


def with_its_autograd(operator: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel above autograd that calls ``run(operator, keyset, *args, **kwargs)`` in the place of the operator.

    What the operator has registered for backward is asked as ever. The kernel is made once: torch makes classes for it, and has
    more than a hundred such operators itself. The operator keeps it, so that both go together.
    """
    kernels: dict[Callable[..., Any], Callable[..., Any]] = vars(operator).setdefault("_memfit_kernels", {})
    if run not in kernels:
        kernels[run] = _make_autograd(_Redispatched(operator._opoverload, functools.partial(run, operator)), operator)
    return kernels[run]


def call_below_autograd(operator: Any, keyset: Any, args: Any, kwargs: Any) -> Any:
    """The operator itself, as torch would have called it."""
    return operator._opoverload.redispatch(keyset & _below_autograd, *args, **kwargs)


class _Redispatched:
    """An operator, as far as autograd asks, that calls something else."""

    def __init__(self, overload: Any, run: Callable[..., Any]) -> None:
        self._overload = overload
        self.redispatch = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._overload, name)


__all__ = ["CustomOperator", "call_below_autograd", "custom_operators", "function_for_cuda", "qualified_name", "with_its_autograd"]
