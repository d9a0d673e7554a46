"""A device kind of our own, written in Python: torch's PrivateUse1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import backend_registration

from memfit.torch_compat.versions import need

register_python_backend: Callable[..., None] = need(backend_registration, "_setup_privateuseone_for_python_backend")
"""Makes the PrivateUse1 device usable from Python: autograd then accepts its tensors on any build of torch."""

BackendHooks: Any = need(backend_registration, "_DummyPrivateUse1Hook")
BackendGuard: Any = need(backend_registration, "_DummyDeviceGuard")
private_backend_name: Callable[[], str] = need(torch._C, "_get_privateuse1_backend_name")
