"""Which engine serves a run."""

from __future__ import annotations

from memfit.allocator.engine import native, python
from memfit.allocator.engine.outcome import Outcome
from memfit.allocator.engine.prepared import Prepared
from memfit.allocator.engine.rules import Rules


def run(prepared: Prepared, rules: Rules) -> Outcome:
    """Serves the requests until they are over or memory has run out: in C where that was compiled, in Python elsewhere."""
    engine = native.library()
    return python.run(prepared, rules) if engine is None else native.run(engine, prepared, rules)
