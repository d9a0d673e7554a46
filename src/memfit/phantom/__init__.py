"""A GPU that is not there.

::

    PhantomWorld ── world.py ── enters and leaves, in order:
        │
        ├─ cuda.py          torch.cuda and torch.accelerator answer for the target          target.py, properties.py, tools.py,
        │                                                                                    legacy.py, caches.py
        ├─ device.py        tensors are cuda to Python, a device kind of our own to C++
        ├─ fake.py          which tensors hold data: PhantomMode, the dispatch mode
        ├─ values.py        what is assumed where only data could tell                       assumptions.py, expected.py,
        │                                                                                    constants.py, shadows.py, shares.py
        ├─ parameters.py    modules that can be moved and cast; foreach optimizers           adopting.py
        ├─ streams.py       streams and events with identity
        ├─ host.py          generators and defaults                                          pinning.py, pointers.py
        ├─ compiling.py     torch.compile and CUDA graphs, passed over
        ├─ checkpoints.py   saving and loading without data
        ├─ refusals.py      what cannot be had, and what to do instead
        ├─ autocast.py      CUDA's autocast lists
        ├─ kernels.py       operators that CUDA runs differently                             attention.py, recurrent.py
        ├─ shapes.py        what their results look like, and what is done in place          inplace.py, convolutions.py
        ├─ workspaces.py    memory that kernels take and no operator shows                   attention_memory.py, sorting.py,
        │                                                                                    reductions.py, libraries.py
        └─ distributed.py   one rank of a fake world                                         ddp.py, reducer.py, fsdp1.py,
                                                                                             sync_norm.py

Nothing is replaced in torch before a world is entered, and everything is put back when it is left (``replacing.py``). What torch
does not promise is reached through ``torch_private.py`` alone.
"""

from memfit.phantom.target import Target
from memfit.phantom.world import PhantomWorld

__all__ = ["PhantomWorld", "Target"]
