"""A GPU that is not there.

::

    PhantomWorld  world.py ── enters and leaves; its _install lists, in order, everything that is replaced, and why
        │
        │             target.py     the GPU, the version of torch and its libraries that a prediction is for
        │             current.py    the prediction that runs, for code that is called from anywhere
        │
        ├─ device/        one device with two names, streams, properties, pinned memory, pointers
        ├─ torch_cuda/    torch.cuda's answers, autocast
        ├─ tensors/       tensors without data, and models that existed before
        ├─ values/        what is known of data that is not there: constants, host data, routing, what the user expects
        ├─ libraries/     kernels that are not torch's: Triton, flash_attn, bitsandbytes, apex
        ├─ kernels/       what runs on the GPU, operator by operator: what it returns and takes
        ├─ clock/         how long all of it takes: operators, collectives and kernels advance a timeline
        ├─ compile/       torch.compile and CUDA graphs
        ├─ distributed/   one rank of a world without peers: process groups, pipelines
        └─ passthrough/   checkpoints and files; what cannot be

Nothing is replaced in torch before a world is entered, and everything is put back when it is left (``torch_compat/patches.py``).
``memfit doctor --patches`` lists all of it.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "PhantomWorld": "world",
    "Target": "target",
}
"""Public names, each with its module, which is imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
