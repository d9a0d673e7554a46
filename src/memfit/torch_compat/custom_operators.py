"""Operators that Python code defines with ``torch.library.custom_op``."""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch._library import autograd, custom_ops

from memfit.torch_compat.versions import need

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
