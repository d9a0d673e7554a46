"""A report, shown.

::

    Report ──> terminal.py   text: in colour on a terminal, plain in a pipe
               escaping.py   names from a file that cannot do more than be read

Views lay out what the report says; every figure comes from ``memfit.analysis``. Nothing in here imports torch.
"""

from memfit.views.terminal import show

__all__ = ["show"]
