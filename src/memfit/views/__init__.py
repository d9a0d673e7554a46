"""A report, shown.

::

    Report ──> terminal.py   text: in colour on a terminal, plain in a pipe
    Diff ────> diff.py       two runs, the same way
    Ledger ──> exports/      files for other people's tools
           └─> html/         one page, for one run or several
               escaping.py   names from a file that cannot do more than be read
               wording.py    what moments, steps and spans of time are called
               verdicts.py   a verdict in words

Views lay out what the report says; every figure comes from ``memfit.analysis``. Nothing in here imports torch.
"""

from memfit.views.terminal import show

__all__ = ["show"]
