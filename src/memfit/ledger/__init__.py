"""The ledger: everything that is known of a run, as columns.

::

    recorder ──> LedgerBuilder ──> Ledger ──> save / load
                      │              │
                      └─> journal    └─> categories, deltas, lifetimes: derived, never stored

    schema.py      the tables and their columns, phases, categories, event kinds
    columns.py     the tables together, and what follows from them alone: births, deaths, moments
    builder.py     appends; the only way to make a ledger
    run_info.py    what is known of the run as a whole: versions, rank, coverage, the error that ended it
    ledger.py      the finished ledger, and the laws that hold for every ledger
    categories.py  what each block turned out to be
    cutting.py     a ledger cut short at some moment, or with its last step repeated
    storage.py     files: safetensors when a run is over
    journal.py     the file while a run lasts: frames, each with a checksum
    running_totals.py  what is in use and what was at most, while a run lasts

Nothing in here imports torch: a ledger can be read, checked and drawn on a machine that has never seen it.
"""

from memfit.ledger.builder import LedgerBuilder
from memfit.ledger.columns import INIT, Moment, moments_at
from memfit.ledger.ledger import Ledger
from memfit.ledger.run_info import Coverage, Failure, RunInfo
from memfit.ledger.schema import ActivityKind, Category, Device, EventKind, Phase, Work, WorkKind

__all__ = [
    "INIT",
    "ActivityKind",
    "Category",
    "Coverage",
    "Device",
    "EventKind",
    "Failure",
    "Ledger",
    "LedgerBuilder",
    "Moment",
    "Phase",
    "RunInfo",
    "Work",
    "WorkKind",
    "moments_at",
]

__not_compiled__ = True
