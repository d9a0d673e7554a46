"""How long things take on a GPU and on its links. It imports no torch, and names no GPU.

::

    operators/   a Call becomes a Cost ──────────> Timeline  timeline.py ──> RunTime  breakdown.py
                                        ^           host and streams          seconds, shares, by module
    rates.py     what was measured ─────┤           pipelines.py  many ranks' stages, one after the other
    leaves.py    the numbers of a file of rates
    shares.py    what others published ─┤
    basis.py     which of them a GPU has┤
    host.py      the host's pace ───────┤
    links.py     interconnects by name ─┴─> collectives.py  all-gather, reduce-scatter, all-reduce, ...

A planner that has shapes but no run asks ``price(Call(...), gpu)`` and the functions of ``collectives``.
"""

from memfit.timing.basis import rates_of
from memfit.timing.breakdown import RunTime, TimeBreakdown
from memfit.timing.links import FREE, Interconnect, parse_interconnect, usual_interconnect
from memfit.timing.operators.calls import Bound, Call, Cost, Operand
from memfit.timing.operators.prices import KernelSettings, least_seconds, price
from memfit.timing.rates import Rates
from memfit.timing.timeline import Timeline

__all__ = [
    "FREE",
    "Bound",
    "Call",
    "Cost",
    "Interconnect",
    "KernelSettings",
    "Operand",
    "Rates",
    "RunTime",
    "TimeBreakdown",
    "Timeline",
    "least_seconds",
    "parse_interconnect",
    "price",
    "rates_of",
    "usual_interconnect",
]

__not_compiled__ = True
