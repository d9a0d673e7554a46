"""What memfit writes onto tensors and storages that hold no data, each under a name of its own."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "_memfit_"
"""What is known of one tensor is not known of the next that is made like it."""

CONSTANT: Final = "_memfit_constant"
"""All elements of the tensor are this number (``values/constants.py``)."""

HOST_DATA: Final = "_memfit_host_data"
"""The tensor's data, on the host (``values/host_data.py``)."""

CHOICES: Final = "_memfit_choices"
"""Each element is one of so many, all equally likely (``values/routing.py``)."""

SHARE: Final = "_memfit_share"
"""So much of the mask is set (``values/routing.py``)."""

VALUES: Final = (CONSTANT, HOST_DATA, CHOICES, SHARE)
"""What is known of a tensor's values."""

IS_PINNED: Final = "_memfit_is_pinned"
"""The storage says that it is pinned (``device/pinned_memory.py``)."""

ON_GPU: Final = "_memfit_on_gpu"
"""The storage of a file was moved to this device (``passthrough/checkpoints.py``)."""
