"""Dispatch modes and dispatch keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._python_dispatch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from memfit.torch_compat.versions import need

num_dispatch_modes: Callable[[], int] = need(torch._C, "_len_torch_dispatch_stack")
"""How many dispatch modes see this thread's operators. They are thread-local; autograd hands them on to its own threads."""

without_modes: Callable[[], Any] = need(torch.utils._python_dispatch, "_disable_current_modes")
"""A context in which no dispatch mode is active."""

excluding_keys: Callable[..., Any] = need(torch._C, "_ExcludeDispatchKeyGuard")
"""A guard under which the given dispatch keys are passed over in this thread."""

DispatchKey: Any = need(torch._C, "DispatchKey")
DispatchKeySet: Any = need(torch._C, "DispatchKeySet")

__all__ = [
    "DispatchKey",
    "DispatchKeySet",
    "HigherOrderOperator",
    "OpOverload",
    "TorchDispatchMode",
    "excluding_keys",
    "num_dispatch_modes",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "without_modes",
]
