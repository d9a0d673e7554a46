"""A report, shown.

::

    Report ──────> terminal.py      text: in colour on a terminal, plain in a pipe
    Diff ────────> diff.py          two runs, the same way
    Explanation ─> explanation.py   why memory ran out, the same way
    Comparison ──> comparison.py    configurations side by side
    a search ────> plan.py          the fastest configuration that fits
    a job ───────> jobs.py          its ranks side by side
    Status ──────> status.py        a run that is still being recorded
    Ledger ──────> exports/         files for other people's tools
             └───> html/            one page, for one run or several
             └───> notebook.py      one drawing, for a notebook; notebook_tables.py: comparisons, searches and plans there

    words/        what is said, for every view: moments, times, comparisons, plans, the doctor
    verdicts.py   a verdict in words, and on a terminal
    drawings.py   which of these draws a result that is looked at in a notebook, or printed by rich
    escaping.py   text from a file, made safe to print
    tables.py     the tables of every view on the terminal

Views lay out what the report says; every figure comes from ``memfit.analysis``. Nothing in here imports torch.
"""

from memfit.views.terminal import show

__all__ = ["show"]
