"""Kernels that scripts bring along: nothing of them runs, and what is allocated around them is counted.

::

    custom_operators.py  torch.library.custom_op, triton_op: the function for CUDA is opened, operator by operator
    runtime_kernels.py   torch.cuda._compile_kernel and cupy: a launch works on memory that the script has allocated
    extensions.py        load, load_inline: C++ and CUDA that is compiled when a script runs
      └─ cpp_source.py     what the functions of an extension allocate and return, read from their C++
    hub_kernels.py       kernels.get_kernel: compiled kernels from Hugging Face's hub
    tile_languages.py    tilelang and CuTe DSL: Python that describes kernels

How long any of them takes cannot be told from outside: predictions name them.
"""
