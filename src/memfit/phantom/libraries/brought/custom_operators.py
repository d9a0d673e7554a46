"""Operators that Python code defines (``torch.library.custom_op``, ``triton_op``): what they do inside is seen.

Torch would take such an operator's word for what it returns (``register_fake``), and what it takes would not be seen while it
runs. Here the function that would run on the GPU runs, on tensors without data, operator by operator:

::

    torch.ops.mylib.double(x) ── above autograd ──> the function for CUDA ──> aten::empty, aten::mul, ...      recorded one by one
                                                          │ fails: it needs real data or a compiled module
                                                          └──> what register_fake says; the assumptions name it

While torch compiles, an operator stays one: Inductor plans around it, and it is opened when the compiled code runs. Torch's own,
from which Inductor makes random numbers among others, are such operators too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from memfit.errors import NeedsGpuError
from memfit.phantom.current import current
from memfit.torch_compat.dispatch import (
    CustomOperator,
    call_below_autograd,
    custom_operators,
    function_for_cuda,
    modes_of_this_thread,
    qualified_name,
    with_its_autograd,
)
from memfit.torch_compat.patches import Patches

KEY = "AutogradPrivateUse1"


def install(patches: Patches) -> None:
    """For those that are defined already, and those that will be."""
    for operator in list(custom_operators.values()):
        _open(patches, operator)

    def with_opening(define: Callable[..., None]) -> Callable[..., None]:
        def __init__(operator: Any, *args: Any, **kwargs: Any) -> None:
            define(operator, *args, **kwargs)
            _open(patches, operator)

        return __init__

    patches.wrap(CustomOperator, "__init__", with_opening)
    for owner in (torch.library, sys.modules[torch.library.wrap_triton.__module__]):
        patches.replace(owner, "wrap_triton", lambda kernel: kernel)


def _open(patches: Patches, operator: Any) -> None:
    patches.implement(KEY, qualified_name(operator), with_its_autograd(operator, _run), with_keyset=True)


def _run(operator: Any, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    function = function_for_cuda(operator)
    if function is None or _is_traced():
        return call_below_autograd(operator, keyset, args, kwargs)
    try:
        return function(*args, **kwargs)
    except Exception as problem:
        try:
            result = call_below_autograd(operator, keyset, args, kwargs)
        except NeedsGpuError as unknown:
            raise unknown from problem
        current().say(
            f"what the operator {qualified_name(operator)} takes while it runs was not counted: its function needs a real GPU, "
            "and only what it returns is known"
        )
        return result


def _is_traced() -> bool:
    """True while torch compiles: the phantom's mode is off then."""
    return not any(getattr(mode, "looks_into_compiled_graphs", False) for mode in modes_of_this_thread())
