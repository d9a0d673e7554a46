"""Seconds of one operator on a GPU.

::

    Call  calls.py ──> price  prices.py ──┬─ products.py        tiles and waves
     an operator with       │             ├─ attention.py       by backend
     its tensors            │             ├─ images/            convolutions, and what stands around them
                            │             ├─ recurrent.py       step by step
                            │             ├─ elementwise.py     vectorized, casting or strided
                            │             ├─ indexing.py        rows looked up, scattered, added with atomics
                            v             └─ memory_bound.py    reductions, norms, losses, scans, optimizers
                          Cost
"""
