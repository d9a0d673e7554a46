"""A run recorded from its operators.

::

    OperatorSession, session.py
        │
        Recorder, recorder.py ── a dispatch mode: one look at every operator's outputs
        ├─ handlers.py    what each operator's outputs need, decided once
        ├─ blocks.py      which storages are known, when each one dies, blocks for what is new
        ├─ roles.py       what blocks turn out to be, by storage
        └─ live_position.py   where this thread's autograd engine is

Recording is small and thinking is later: an operator costs one lookup per output and one row per new block. Nothing here computes
a sum.
"""
