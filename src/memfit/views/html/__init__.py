"""Ledgers as one HTML file that needs nothing else: no network, no server, no Python.

::

    Ledger ──> study ──> Run ──┬─> verdict, peak, steps, facts ──> HTML, as it is read ──────────┐
                               ├─> timeline, modules ──> numbers and words ──> packed ───────────┼──> one file
                               └─> built/page.js, page.css: draws what is packed, counts nothing ┘

    runs.py       a ledger with all that is shown of it worked out      markup.py     HTML that cannot be broken out of
    verdict.py    does it fit                                          packing.py    strings and positions, as numbers
    peak.py       what the peak is made of                             page.py       the report, and several runs side by side
    modules.py    the tree of modules                                  mesh.py       the ranks of a job, as a grid
    steps.py      steps side by side                                   document.py   what is around every page of the family
    facts.py      versions, settings
    over_time/    memory over the run and the last step, levels, segments
    results/      pages of comparisons, plans, differences and explanations

The script is built from ``web/`` by developers (``make page``); what comes out is part of the package.
"""

from memfit.views.html.page import render_page
from memfit.views.html.runs import Run, study

__all__ = ["Run", "render_page", "study"]
