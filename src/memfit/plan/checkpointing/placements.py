"""Which of equal units gets which level, once it is decided how many get each.

::

    FRONT          A A A B B B    what computes most again comes first in forward
    SPREAD         A B A B A B
    SPREAD_BACK    B A B A B A
    BACK           B B B A A A    what computes most again comes last

Seconds are the same. Allocated memory is least with ``FRONT``: backward begins with the last units, and when it comes to the first,
what the last ones kept is gone, and what is computed again has its place. But the allocator may need less with another one, where
freed memory has the right size for what comes next: a GPT under FSDP2 with 6 of its 12 layers computed again needs 16.3 GB with
``FRONT`` and 15.1 GB with ``BACK``, for 13.0 GB allocated (``gpt_fsdp2`` in ``benchmarks/plans/plan_workloads.py``).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class Placement(enum.Enum):
    """How levels are spread over equal units."""

    FRONT = enum.auto()
    SPREAD = enum.auto()
    SPREAD_BACK = enum.auto()
    BACK = enum.auto()

    def levels_of_units(self, counts: Sequence[int]) -> list[int]:
        """For each unit in forward's order, which level it gets; ``counts`` says how many get each, most computed again first."""
        if self in (Placement.FRONT, Placement.BACK):
            found = [level for level, count in enumerate(counts) for _ in range(count)]
        else:
            middles = [((number + 0.5) / count, level) for level, count in enumerate(counts) for number in range(count)]
            found = [level for _, level in sorted(middles)]
        return found[::-1] if self in (Placement.BACK, Placement.SPREAD_BACK) else found
