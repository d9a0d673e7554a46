"""Parameters without data, and modules that can be moved and cast.

``Module.to`` must leave every parameter the object it was, or tied weights come apart and optimizers made earlier lose theirs.
Torch does that by exchanging the insides of two tensors, which it refuses while anybody holds a weak reference, as recorders do.
Here the references are ours, and the exchange is harmless. ``tensor.data = other`` takes a tensor from one device to another where
FSDP1 offloads; torch allows that between devices of its own, and would not between the host and ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memfit.phantom.tensors.existing_models import adopt_tensor
from memfit.phantom.tensors.mode import PhantomMode
from memfit.phantom.tensors.subclasses import of_class
from memfit.torch_compat.defaults import clipping_foreach_types, optimizer_foreach_types
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches
from memfit.torch_compat.tensors import TensorBase, swap_insides


def install(patches: Patches, mode: PhantomMode) -> None:
    """Parameters made from now on hold no data; optimizers treat them as they treat any others."""
    make_parameter, swap_tensors = nn.Parameter.__new__, torch.utils.swap_tensors
    patches.replace(nn.Parameter, "__new__", staticmethod(_without_data(make_parameter, mode)))
    patches.replace(torch.utils, "swap_tensors", _despite_references(swap_tensors))
    patches.replace(FakeTensor, "__deepcopy__", _deepcopy)
    patches.replace(torch.Tensor, "data", _across_devices(patches, mode))
    _allow_data_across_devices(patches)
    patches.append(optimizer_foreach_types, FakeTensor)
    patches.append(clipping_foreach_types, FakeTensor)


def _without_data(make_parameter: Callable[..., Any], mode: PhantomMode) -> Callable[..., Any]:
    def __new__(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        if cls is nn.Parameter and type(data) in (torch.Tensor, nn.Parameter):
            data = mode.from_tensor(data.detach(), static_shapes=True)
        if type(data) is not FakeTensor and isinstance(data, FakeTensor) and isinstance(data, cls):
            return data.requires_grad_(requires_grad)  # of a class of its own, which it keeps
        if cls is not nn.Parameter and isinstance(data, FakeTensor):
            return of_class(data, cls, requires_grad)
        return make_parameter(cls, data, requires_grad)

    return __new__


def _despite_references(swap_tensors: Callable[..., None]) -> Callable[..., None]:
    def swap(kept: torch.Tensor, given: torch.Tensor) -> None:
        if kept is given:
            return
        if isinstance(kept, FakeTensor) and isinstance(given, FakeTensor):
            if type(kept) is not FakeTensor and type(given) is FakeTensor:
                given.__dict__ = kept.__dict__ | given.__dict__  # a class of its own stays, with what it has written there
            else:
                kept.__class__, given.__class__ = given.__class__, kept.__class__
            kept.__dict__, given.__dict__ = given.__dict__, kept.__dict__
            swap_insides(kept, given)
        else:
            swap_tensors(kept, given)

    return swap


def _deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """A copy with memory of its own, made by an operator that recorders see: averages of weights are made this way."""
    if id(tensor) not in memo:
        copied, requires_grad = tensor.detach().clone(), tensor.requires_grad
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(copied, requires_grad) if is_parameter else copied.requires_grad_(requires_grad)
        if tensor.is_leaf and tensor.grad is not None:
            memo[id(tensor)].grad = _deepcopy(tensor.grad, memo)
    return memo[id(tensor)]  # type: ignore[no-any-return]


def _across_devices(patches: Patches, mode: PhantomMode) -> property:
    data: Any = TensorBase.data  # a descriptor, whatever its stub says

    def set_data(tensor: torch.Tensor, given: torch.Tensor) -> None:
        if isinstance(given, FakeTensor) and type(tensor) in (torch.Tensor, nn.Parameter):
            adopt_tensor(patches, tensor, given)
            return
        if isinstance(tensor, FakeTensor) and type(given) in (torch.Tensor, nn.Parameter):
            given = mode.from_tensor(given.detach(), static_shapes=True)
        data.__set__(tensor, given)
        if isinstance(tensor, FakeTensor) and isinstance(given, FakeTensor):
            tensor.fake_device = given.fake_device

    return property(data.__get__, set_data)


def _allow_data_across_devices(patches: Patches) -> None:
    patches.implement("AutogradPrivateUse1", "_has_compatible_shallow_copy_type", lambda kept, given: True)
