"""A run recorded from the history that CUDA's allocator keeps.

::

    the run ──> CUDA's allocator ──> entries, in C++ ──┐ history.py, traces.py
        ├─────> marks on the host ─────────────────────┼──> Window ──> Joiner ──> LedgerBuilder
        └─────> addresses of tensors ── facts ─────────┘    joining.py: with extents.py, workspaces.py

    session.py     attach, step by step, close: what is read when, what is kept and what is forgotten
    marks.py       which module runs, whose backward, which step
    facts.py       which block is a parameter, a gradient, optimizer state
    backward_plans.py   where backward is, once that was seen
    extents.py     how much the allocator gave for each request
    workspaces.py  blocks that cuBLAS keeps
    retention.py   what of a long run is kept in full         levels.py   what is kept of every step
    alarms.py      memory that grows from step to step, fragmentation

Whatever is done for each block is done by the allocator itself; Python pays for modules and steps.
"""
