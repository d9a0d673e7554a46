"""A report, shown.

::

    Report ──────> terminal.py      text: in colour on a terminal, plain in a pipe
    Diff ────────> diff.py          two runs, the same way
    Explanation ─> explanation.py   why memory ran out, the same way
    Comparison ──> comparison.py    configurations side by side; comparison_words.py what the table says, and what to do
    Ledger ──────> exports/         files for other people's tools
             └───> html/            one page, for one run or several
             └───> notebook.py      one drawing, for a notebook

    drawings.py   which of these draws a result that is looked at in a notebook, or printed by rich
    escaping.py   names from a file that cannot do more than be read
    wording.py    moments, steps and spans of time in sentences
    verdicts.py   a verdict in words
    tables.py     the tables of every view on the terminal

Views lay out what the report says; every figure comes from ``memfit.analysis``. Nothing in here imports torch.
"""

from memfit.views.terminal import show

__all__ = ["show"]
