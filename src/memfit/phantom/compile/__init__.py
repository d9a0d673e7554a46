"""``torch.compile`` and CUDA graphs: torch's own compiler plans, and what it has planned is run without kernels.

::

    compiler.py        takes part when a function is compiled; what cannot be compiled falls back to eager code
    inductor.py        plans memory as on the GPU; its wrapper is run here
    tracing.py         while torch compiles, it sees torch as it is
    folding.py         constants that torch works out meanwhile
    device_answers.py  what Inductor asks about the GPU
    padding.py         matrix products whose sizes are not aligned
    wrapper.py         runs what Inductor writes: allocations, library calls, kernels
    launches.py        kernels of Triton's that a script launches inside compiled code
    tuning.py          kernels that are timed at their first launch
    origins.py         the kernel and the module that a buffer is for
    allocation.py      tells the recorder of it
    cuda_graphs.py     CUDA graphs of the mode reduce-overhead
    ignored_features.py     CUDA graphs that a script captures, TorchScript, torch.cond: the code runs as plain Python
"""

__not_compiled__ = True
