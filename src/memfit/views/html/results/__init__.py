"""Pages of the family of the report about other results than a run: how several stand to one another.

::

    Comparison ──> comparison.py ─┐
    PlanSearch ──> plan.py ───────┤
    Diff ────────> difference.py ─┼──> document: one file, with the script and style of the report
    Explanation ─> explanation.py ┘
                   pictures.py    time against memory, runs laid over one another, bars
                   sections.py    headlines, sentences and what is folded
"""
