"""A ledger, for other people's tools.

::

    Ledger ─┬─> memory_viz.py    memory-viz          pytorch.org/memory_viz: a pickled snapshot, with its segments
            ├─> perfetto.py      perfetto            ui.perfetto.dev: counters by category, slices by module and phase
            ├─> speedscope.py    speedscope          speedscope.app: the bytes at the peak, by module
            ├─> csv_tables.py    csv, csv-events     spreadsheets and data frames
            └─> json_report.py   json                programs

    frames.py    what is known of a block, as the frames of a stack

Names come from files that may come from strangers: in what is written they can only be read. Nothing in here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memfit.ledger import Ledger
from memfit.views.exports.csv_tables import write_blocks, write_events
from memfit.views.exports.json_report import write_report
from memfit.views.exports.memory_viz import write_snapshot
from memfit.views.exports.perfetto import write_trace
from memfit.views.exports.speedscope import write_stacks


@dataclass(frozen=True)
class Export:
    """A format that other tools read."""

    write: Callable[[Ledger], bytes]
    suffix: str
    """How such files are usually named."""
    use: str
    """What to do with one."""


EXPORTS = {
    "memory-viz": Export(write_snapshot, ".pickle", "drop it on https://pytorch.org/memory_viz"),
    "perfetto": Export(write_trace, ".trace.json", "open it in https://ui.perfetto.dev"),
    "speedscope": Export(write_stacks, ".speedscope.json", "drop it on https://www.speedscope.app"),
    "csv": Export(write_blocks, ".blocks.csv", "one row per block"),
    "csv-events": Export(write_events, ".events.csv", "one row per event"),
    "json": Export(write_report, ".report.json", "the report, as one JSON object"),
}

__all__ = ["EXPORTS", "Export"]
