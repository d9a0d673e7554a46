"""A run recorded from the history that CUDA's allocator keeps.

::

    the run ──> CUDA's allocator ──> entries, in C++ ──┐ history.py, traces.py
        ├─────> marks on the host ─────────────────────┼──> Window ──> Joiner ──> LedgerBuilder
        └─────> addresses of tensors ── facts ─────────┘    joining.py

    session.py     HistorySession: attach, step by step, close
    ├─ follower.py     RunFollower: what the run does becomes marks and facts
    │     ├─ marks.py      which module runs, whose backward, which step
    │     └─ facts.py      which block is a parameter, a gradient, optimizer state, by address
    ├─ reader.py       HistoryReader: the history, read and begun anew
    ├─ windows.py      WindowLedger: the windows that the ledger is made of
    ├─ retention.py    StepKeeper: which steps of a long run are kept in full
    ├─ levels.py       LevelReporter: how full devices were at the end of every step
    └─ alarms.py       AlarmWatch: memory that grows from step to step, fragmentation

    joining.py     asks extents.py how much the allocator gave for each request and which blocks cuBLAS keeps, and
                   backward_plans.py where backward is, once that was seen, in this recording or an earlier one

Whatever is done for each block is done by the allocator itself; Python pays for modules and steps.
"""
