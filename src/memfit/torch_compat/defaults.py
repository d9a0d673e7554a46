"""What torch decides by default: devices, and which parameters optimizers update in one go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.init
import torch.optim.optimizer
import torch.utils._device
import torch.utils._foreach_utils

from memfit.torch_compat.versions import need

factory_functions: Callable[[], set[Any]] = need(torch.utils._device, "_device_constructors")
"""The functions that follow a default device; torch asks once and keeps the answer."""

optimizer_foreach_types: list[type] = need(sys.modules["torch.optim.optimizer"], "_foreach_supported_types")
"""The types of parameters for which optimizers choose their foreach form."""

clipping_foreach_types: list[type] = need(torch.utils._foreach_utils, "_foreach_supported_types")
"""The same, for gradient clipping."""

INITIALISATION = torch.nn.init
TRUNCATED_NORMAL = "_no_grad_trunc_normal_"
"""The function that ``trunc_normal_`` calls."""


def default_device_context() -> Any:
    """What ``torch.set_default_device`` left, ``None`` if nothing."""
    return getattr(need(torch, "_GLOBAL_DEVICE_CONTEXT"), "device_context", None)
