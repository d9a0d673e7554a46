"""What the estimators and the solver are made of.

::

    prices.py       an operator on tensors ──> milliseconds on a GPU, by memfit.timing
    operations.py   what ran, in order: bytes, storages, views, in-place, random         (recording)
    sac_data.py     SACStats and the classes around it
    decisions.py    SACStats ──> which operators are decided together, in which order
    curves.py       the order ──> what is kept against what is recomputed
    moments.py      a ledger ──> the highest moments of a step, and what is held at each
    units.py        names of modules, units of FSDP, and what they gather
    problem.py      moments and curves ──> a linear programme with binary choices
    display.py      what the display methods print
"""
