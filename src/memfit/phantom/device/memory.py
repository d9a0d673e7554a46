"""Memory that says it is pinned, and addresses of memory that is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.phantom.tensors.tensor_annotations import IS_PINNED
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches


def install_pinned_memory(patches: Patches) -> None:
    patches.replace(torch.Tensor, "pin_memory", _pin_memory)
    patches.replace(torch.Tensor, "is_pinned", is_pinned)
    patches.wrap(torch, "tensor", _making_pinned)
    patches.replace(torch.UntypedStorage, "is_pinned", lambda storage, device="cuda": hasattr(storage, IS_PINNED))


def _making_pinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``torch.tensor``, which would ask C++ to pin."""

    def tensor(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        made = make(*args, **kwargs)
        return mark_pinned(made) if pin_memory else made

    return tensor


def mark_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """The storage keeps the mark, so that views of it are pinned too."""
    setattr(tensor.untyped_storage(), IS_PINNED, True)
    return tensor


def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    try:
        return hasattr(tensor.untyped_storage(), IS_PINNED)
    except NotImplementedError:  # a tensor made of others has none
        return False


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    return tensor if is_pinned(tensor) else torch.empty_like(tensor, pin_memory=True).copy_(tensor)


# -- pointers ----------------------------------------------------------------------------------------------------------------
#
# A pointer is mostly asked for to tell tensors apart (tied weights, views, FSDP's checks), so every storage has one: distinct and
# aligned as CUDA's are, in the order of asking. None of them can be mistaken for memory: no machine maps addresses that large, so
# code that follows one fails at once and changes nothing.

FIRST = 1 << 60
ALIGNMENT = 512


class Addresses:
    """Hands out ranges that never overlap."""

    def __init__(self) -> None:
        self._next = FIRST
        self._ranges: dict[int, tuple[int, int]] = {}

    def of(self, storage: torch.UntypedStorage) -> int:
        size = storage.nbytes()
        if not size:
            return 0
        start, length = self._ranges.get(storage._cdata, (0, 0))
        if size > length:  # new, or in the place of one that is gone
            start, self._next = self._next, self._next + -(-size // ALIGNMENT) * ALIGNMENT
            self._ranges[storage._cdata] = (start, size)
        return start


def install_pointers(patches: Patches) -> None:
    addresses = Addresses()
    ask: Callable[[Any], int] = torch.UntypedStorage.data_ptr

    def storage_address(storage: torch.UntypedStorage) -> int:
        return addresses.of(storage) if storage.device.type == "meta" else ask(storage)

    def tensor_address(tensor: torch.Tensor) -> int:
        start = storage_address(tensor.untyped_storage())
        return start + int(tensor.storage_offset()) * tensor.element_size() if start else 0

    patches.replace(FakeTensor, "data_ptr", tensor_address)
    patches.replace(torch.UntypedStorage, "data_ptr", storage_address)
