"""Parameters without data, and modules that can be moved and cast.

``Module.to`` must leave every parameter the object it was, or tied weights come apart and optimizers made earlier lose theirs.
Torch does that by exchanging the insides of two tensors, which it refuses while anybody holds a weak reference, as recorders do.
Here the references are ours, and the exchange is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memfit.phantom.fake import PhantomMode
from memfit.phantom.replacing import Replacements
from memfit.phantom.torch_private import FakeTensor, clipping_foreach_types, optimizer_foreach_types, swap_insides


def install(replacements: Replacements, mode: PhantomMode) -> None:
    """Parameters made from now on hold no data; optimizers treat them as they treat any others."""
    make_parameter, swap_tensors = nn.Parameter.__new__, torch.utils.swap_tensors
    replacements.attribute(nn.Parameter, "__new__", staticmethod(_without_data(make_parameter, mode)))
    replacements.attribute(torch.utils, "swap_tensors", _despite_references(swap_tensors))
    replacements.member(optimizer_foreach_types, FakeTensor)
    replacements.member(clipping_foreach_types, FakeTensor)


def _without_data(make_parameter: Callable[..., Any], mode: PhantomMode) -> Callable[..., Any]:
    def __new__(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        if cls is nn.Parameter and type(data) in (torch.Tensor, nn.Parameter):
            data = mode.from_tensor(data.detach(), static_shapes=True)
        return make_parameter(cls, data, requires_grad)

    return __new__


def _despite_references(swap_tensors: Callable[..., None]) -> Callable[..., None]:
    def swap(kept: torch.Tensor, given: torch.Tensor) -> None:
        if type(kept) is FakeTensor and type(given) is FakeTensor:
            kept.__dict__, given.__dict__ = given.__dict__, kept.__dict__
            swap_insides(kept, given)
        else:
            swap_tensors(kept, given)

    return swap
