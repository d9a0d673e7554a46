"""The allocator itself, twice: readable in Python, fast in C.

::

    Requests ──> Prepared ──┬─> native.py ─> csrc/    when the package was built with a C compiler
             (settings)     └─> python.py             everywhere else
                                     │
                                     └─> Outcome: the size of each block, what became of segments, where it ran out

    rules.py       what an engine must know: limits, thresholds, tie-breaks, as plain numbers
    outcome.py     Outcome: what an engine reports of a run
    prepared.py    requests with their sizes rounded and their free lists found
    repeating.py   which of them are the same again and again: a trial leaves repeats out once they change nothing
    blocks.py      blocks, their chains, and the free lists they wait in
    allocator.py   one allocation or free at a time
    expandable.py  segments that grow page by page
    python.py      a whole run, or one that goes on, in Python
    native.py      the same in C
    compiling.py   makes the library of csrc/, when the package is built

``allocator.py`` and its neighbours are the description; ``csrc/`` follows them function by function, and a property test holds the
two equal.
"""

from memfit.allocator.engine import native, python
from memfit.allocator.engine.allocator import CachingAllocator
from memfit.allocator.engine.outcome import Outcome, SegmentChange, TriedRun
from memfit.allocator.engine.prepared import Prepared, prepare
from memfit.allocator.engine.rules import NO_LIMIT, Rules

__all__ = [
    "NO_LIMIT",
    "CachingAllocator",
    "Outcome",
    "Prepared",
    "Rules",
    "SegmentChange",
    "TriedRun",
    "open_run",
    "prepare",
    "run",
    "try_run",
]


def run(prepared: Prepared, rules: Rules) -> Outcome:
    """Serves the requests until they are over or memory has run out: in C where that was compiled, in Python elsewhere."""
    engine = native.library()
    return python.run(prepared, rules) if engine is None else native.run(engine, prepared, rules)


def try_run(prepared: Prepared, rules: Rules) -> TriedRun:
    """How serving the requests ends: faster than ``run``, above all where a run repeats itself."""
    engine = native.library()
    return python.try_run(prepared, rules) if engine is None else native.try_run(engine, prepared, rules)


def open_run(rules: Rules) -> native.NativeOpenRun | python.OpenRun:
    """A run that goes on: its requests are served as they come."""
    engine = native.library()
    return python.OpenRun(rules) if engine is None else native.NativeOpenRun(engine, rules)
