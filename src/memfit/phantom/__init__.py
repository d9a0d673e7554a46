"""A GPU that is not there.

::

    PhantomWorld ── world.py ── enters and leaves, in order:
        │
        ├─ cuda.py          torch.cuda and torch.accelerator answer for the target          target.py
        ├─ device.py        tensors are cuda to Python, a device kind of our own to C++
        ├─ fake.py          which tensors hold data: PhantomMode, the dispatch mode          shapes.py
        ├─ values.py        what is assumed where only data could tell                       assumptions.py
        ├─ parameters.py    modules that can be moved and cast; foreach optimizers
        ├─ streams.py       streams and events with identity
        ├─ host.py          pinned memory, generators, pointers, torch.compile
        ├─ autocast.py      CUDA's autocast lists
        ├─ kernels.py       operators that CUDA runs differently                             attention.py
        ├─ workspaces.py    memory that kernels take and no operator shows
        └─ distributed.py   one rank of a fake world                                         ddp.py, fsdp1.py

Nothing is replaced in torch before a world is entered, and everything is put back when it is left (``replacing.py``). What torch
does not promise is reached through ``torch_private.py`` alone.
"""

from memfit.phantom.target import Target
from memfit.phantom.world import PhantomWorld

__all__ = ["PhantomWorld", "Target"]
