"""How long things take on a GPU and on its links. It imports no torch.

::

    operators/   a Call becomes a Cost ──────────> Timeline  timeline.py ──> RunTime  breakdown.py
                                        ^           host and streams          seconds, shares, by module
    chips.py     peaks of each GPU ─────┤
    host.py      the host's pace ───────┤
    links.py     interconnects by name ─┴─> collectives.py  all-gather, reduce-scatter, all-reduce, ...

A planner that has shapes but no run asks ``price(Call(...), chip)`` and the functions of ``collectives``.
"""

from memfit.timing.breakdown import RunTime, TimeBreakdown
from memfit.timing.chips import CHIPS, Chip, chip_of
from memfit.timing.links import FREE, Interconnect, parse_interconnect, usual_interconnect
from memfit.timing.operators.calls import Call, Operand
from memfit.timing.operators.costs import Bound, Cost
from memfit.timing.operators.prices import Settings, least_seconds, price
from memfit.timing.timeline import Timeline

__all__ = [
    "CHIPS",
    "FREE",
    "Bound",
    "Call",
    "Chip",
    "Cost",
    "Interconnect",
    "Operand",
    "RunTime",
    "Settings",
    "TimeBreakdown",
    "Timeline",
    "chip_of",
    "least_seconds",
    "parse_interconnect",
    "price",
    "usual_interconnect",
]

__not_compiled__ = True
