"""What torch does not promise, and what is replaced in it: the only part of memfit that knows.

::

    versions.py      the supported range of torch; need(): a private part, or an error with its name
    patches.py       Patches: everything that is replaced for a while, with who, where and why
    │
    ├─ attributes.py     private names that are read or replaced in place
    ├─ autograd.py       the engine, its nodes and who called it
    ├─ dispatch.py       dispatch modes and keys, operators that Python code defines
    ├─ dynamo.py         is this inside compiled code?
    ├─ compiler.py       Dynamo, AOTAutograd and Inductor, from a graph to the wrapper that runs it
    ├─ fake_tensors.py   tensors without data, and how they answer
    ├─ tensors.py        making tensors, exchanging their insides
    ├─ devices.py        a device kind of our own, CUDA's side of torch, default devices, foreach optimizers
    ├─ memory_history.py the history that CUDA's allocator keeps
    ├─ distributed.py    the fake process group, buckets, DTensor
    ├─ pipelining.py     what pipeline stages tell each other
    └─ fsdp.py           FSDP2's and FSDP1's insides, state dicts

Where the installed torch has moved a part, importing the file that needs it raises ``UnsupportedTorchError`` with its name.
``memfit doctor`` lists the parts and the patches; ``tests/torch_compat`` exercises each part, and finds code that bypasses it.
"""

__not_compiled__ = True
