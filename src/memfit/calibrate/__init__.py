"""A card, measured by its owner: what memfit needs of it becomes one file, which ``--gpu FILE.toml`` uses anywhere.

::

    meter.py          what is asked of a card (CardMeter); a fake one in tests
      └─ cuda.py      a real one: memory.py, host_cases.py, kernel_cases.py (what runs), tracing.py (how long kernels took)
             │
             v  Measurements
    fitting.py        the clock's numbers are moved until prices are what was measured (timing/leaves.py: which there are)
    host.py           the same of the host, and of copies
    card.py           memory, peaks and links, as a table of data/gpus.toml
             │
             v
    file.py           all of it as one TOML file
    session.py        the order of it all, within three minutes
    runs.py           real step times correct rates and the host's pace

Imports torch only where a card is measured.
"""

from __future__ import annotations
