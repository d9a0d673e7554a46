"""What memfit writes onto tensors and storages that hold no data, each under a name of its own."""

from __future__ import annotations

from typing import Any, Final

from memfit.torch_compat.fake_tensors import FakeTensor

PREFIX: Final = "_memfit_"
"""What is known of one tensor is not known of the next that is made like it."""

CONSTANT: Final = "_memfit_constant"
"""All elements of the tensor are this number (``values/constants.py``)."""

HOST_DATA: Final = "_memfit_host_data"
"""The tensor's data, on the host (``values/host_data.py``)."""

CHOICES: Final = "_memfit_choices"
"""Each element is one of that many numbers, all equally likely (``values/routing.py``)."""

SHARE: Final = "_memfit_share"
"""So much of the mask is set (``values/routing.py``)."""

EXPERTS: Final = "_memfit_experts"
"""A dimension of the mask with as many elements as this has one for each expert (``values/routing.py``)."""

LARGEST: Final = "_memfit_largest"
"""No element is larger than this: it was picked from numbers that are known (``values/routing.py``)."""

IS_WHOLE: Final = "_memfit_is_whole"
"""The tensor holds whole numbers, whatever its type (``values/routing.py``)."""

ADDS_UP: Final = "_memfit_adds_up"
"""So many of its elements are shares of one whole: a softmax over them (``values/routing.py``)."""

VALUES: Final = (CONSTANT, HOST_DATA, CHOICES, SHARE, EXPERTS, LARGEST, IS_WHOLE, ADDS_UP)
"""What is known of a tensor's values."""

IS_PINNED: Final = "_memfit_is_pinned"
"""The storage says that it is pinned (``device/memory.py``)."""

ON_GPU: Final = "_memfit_on_gpu"
"""The storage of a file was moved to this device (``passthrough/checkpoints.py``)."""


def forget_data(*tensors: Any) -> None:
    """A kernel may have written to these: what was known of their data is known no longer."""
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            for known in (tensor, tensor._base):
                for name in VALUES if known is not None else ():
                    known.__dict__.pop(name, None)
