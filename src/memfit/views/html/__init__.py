"""Ledgers as one HTML file that needs nothing else: no network, no server, no Python.

::

    Ledger ──> study ──> Run ──┬─> verdict, peak, steps, facts ──> HTML, as it is read ──────────┐
                               ├─> timeline, modules ──> numbers and words ──> packed ───────────┼──> one file
                               └─> built/page.js, page.css: draws what is packed, counts nothing ┘

    runs.py       a ledger with all that is shown of it worked out      markup.py     HTML that cannot be broken out of
    verdict.py    does it fit                                          texts.py      every string once, for packing
    timeline.py   memory over the run, at every zoom                   scales.py     axes
    peak.py       what the peak is made of                             overview.py   several runs side by side
    modules.py    the tree of modules                                  page.py       the file
    steps.py      steps side by side                                   mesh.py       the ranks of a job, as a grid
    facts.py      versions, settings                                   lanes.py      the last step over milliseconds, by stream

The script is built from ``web/`` by developers (``make page``); what comes out is part of the package.
"""

from memfit.views.html.page import render_page
from memfit.views.html.runs import Run, study

__all__ = ["Run", "render_page", "study"]
