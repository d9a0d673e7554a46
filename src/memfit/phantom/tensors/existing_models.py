"""Models that were built before the world was entered, with data.

Moving one to the phantom GPU exchanges the insides of its parameters for ones without data; the parameters stay the objects they
were, so ties and optimizers hold. Leaving the world gives everything back: the model has its data, on the host, as before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memfit.torch_compat.patches import Patches
from memfit.torch_compat.tensors import swap_insides


def install(patches: Patches) -> None:
    apply: Callable[..., nn.Module] = nn.Module._apply

    def _apply(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        _adopt(patches, module)
        return apply(module, fn, recurse)

    patches.replace(nn.Module, "_apply", _apply)


def _adopt(patches: Patches, module: nn.Module) -> None:
    """Of this module alone: torch asks for those inside it one by one."""
    for param in module._parameters.values():
        if type(param) is nn.Parameter:
            _adopt_parameter(patches, param)
    buffers = {name: buffer for name, buffer in module._buffers.items() if type(buffer) is torch.Tensor}
    if buffers:
        patches.finally_call(lambda: module._buffers.update(buffers))


def _adopt_parameter(patches: Patches, param: nn.Parameter) -> None:
    adopt_tensor(patches, param, param.detach())


def adopt_tensor(patches: Patches, tensor: torch.Tensor, given: torch.Tensor) -> None:
    """``tensor``, which has data, becomes one without until the world is left: it looks like ``given``, and shares its storage."""
    if isinstance(tensor, nn.Parameter):
        other: torch.Tensor = nn.Parameter(given.detach(), tensor.requires_grad)
    else:
        other = given.detach()
    _exchange(tensor, other)
    reference = weakref.ref(tensor)

    def give_back() -> None:
        adopted = reference()
        if adopted is not None:
            _exchange(adopted, other)

    patches.finally_call(give_back)


def _exchange(one: Any, other: Any) -> None:
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    swap_insides(one, other)
