"""The ledger: everything that is known of a run, as columns.

::

    recorder ──> LedgerBuilder ──> Ledger ──> save / load
                      │              │
                      └─> journal    └─> categories, deltas, lifetimes: derived, never stored

    schema.py      the tables and their columns, phases, categories, event kinds
    columns.py     the tables together, and what follows from them alone
    builder.py     appends; the only way to make a ledger
    ledger.py      the finished ledger
    categories.py  what each block turned out to be
    moments.py     the step, the phase and the module that an event fell in
    laws.py        what must hold for every ledger
    coverage.py    what of a run was seen
    failure.py     the out-of-memory error that ended the run
    cutting.py     a ledger up to some moment
    repeating.py   a ledger with its last step some more times
    storage.py     files: safetensors when a run is over
    journal.py     the file while a run lasts: frames, each with a checksum
    running_totals.py  what is in use and what was at most, while a run lasts

Nothing in here imports torch: a ledger can be read, checked and drawn on a machine that has never seen it.
"""

from memfit.ledger.builder import LedgerBuilder
from memfit.ledger.coverage import Coverage
from memfit.ledger.failure import Failure
from memfit.ledger.ledger import Ledger
from memfit.ledger.moments import INIT, Moment, moments_at
from memfit.ledger.schema import ActivityKind, Category, Device, EventKind, Phase, RunInfo, Work, WorkKind

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
