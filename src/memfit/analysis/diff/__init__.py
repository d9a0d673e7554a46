"""What two runs differ in.

::

    runs.py       two ledgers, compared: Diff, diff_ledgers
      ├─ blocks.py     what each held at its peak, and what is not the same in both
      └─ levels.py     how high each phase of each step went
    compared.py   one figure of two runs
"""

from memfit.analysis.diff.runs import Diff, diff_ledgers

__all__ = ["Diff", "diff_ledgers"]
