"""The work of each stream in the last step, for the ledger: the clock's kernels, with equal neighbours merged.

Computed once after the step, from the kernels that the clock has noted anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from memfit.analysis.lanes import join, take, thin
from memfit.ledger import Ledger, Phase, Work, WorkKind
from memfit.ledger.schema import Array
from memfit.timing.breakdown import RunTime
from memfit.timing.operators.calls import Bound, Cost
from memfit.timing.timeline import COMMUNICATION

MOST_SPANS: Final = 4_096
"""Most rows kept per stream: more than a drawing has pixels."""

_KINDS: Final[Mapping[Phase, WorkKind]] = {
    Phase.FORWARD: WorkKind.FORWARD,
    Phase.BACKWARD: WorkKind.BACKWARD,
    Phase.RECOMPUTE: WorkKind.RECOMPUTE,
    Phase.OPTIMIZER: WorkKind.OPTIMIZER,
    Phase.PRE_FORWARD: WorkKind.COPY,
    Phase.POST_FORWARD: WorkKind.COPY,
    Phase.PRE_BACKWARD: WorkKind.COPY,
    Phase.POST_BACKWARD: WorkKind.COPY,
    Phase.CHECKPOINT: WorkKind.OTHER,
}


def with_work(ledger: Ledger, time: RunTime, groups: Mapping[int, str], most_spans: int = MOST_SPANS) -> Ledger:
    """The ledger with the work of the last step in it, where there was a step. ``groups`` names process groups by their number."""
    if not time.num_steps:
        return ledger
    words = _Words(ledger.strings)
    kernels = _kernels(ledger, time, words, groups)
    # The nanosecond is for what rounding does to both ends.
    lanes, longest_pause = [], round(1e9 * time.gap_seconds) + 1
    for stream in np.unique(kernels.stream).tolist():
        joined = join(take(kernels, np.flatnonzero(kernels.stream == stream)), longest_pause)
        lanes.append(thin(joined, most_spans, ledger.modules.parent))
    return replace(ledger, work=Work.concatenate(lanes), strings=words.all())


class _Words:
    """The strings of a ledger, with new ones added."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._numbers = {text: number for number, text in reversed(list(enumerate(strings)))}
        self._all = list(strings)

    def number(self, text: str) -> int:
        known = self._numbers.get(text)
        if known is None:
            known = self._numbers[text] = len(self._all)
            self._all.append(text)
        return known

    def all(self) -> tuple[str, ...]:
        return tuple(self._all)


def _kernels(ledger: Ledger, time: RunTime, words: _Words, groups: Mapping[int, str]) -> Work:
    """One row for each call that took time in the last step, in order of time within each stream."""
    first, end = time.steps[-2], time.steps[-1]
    part = np.arange(first.span, end.span)[time.spans.seconds[first.span : end.span] > 0]
    stream, begin, cost = time.spans.stream[part], time.spans.begin[part], time.spans.cost[part]
    scope = time.spans.scope[part]
    begin_ns, end_ns = (np.rint(1e9 * when).astype(np.int64) for when in (begin, begin + time.spans.seconds[part]))
    used, which = np.unique(cost, return_inverse=True)
    costs = [time.costs[number] for number in used.tolist()]
    group_of = {number: words.number(groups[COMMUNICATION - number]) for number in set(stream[stream <= COMMUNICATION].tolist())}
    return Work(
        stream=stream.astype(np.int64),
        group=np.array([group_of.get(number, -1) for number in stream.tolist()], dtype=np.int32),
        kind=_kinds(ledger, stream, scope, np.array([known.bound is Bound.LINK for known in costs], dtype=bool)[which]),
        module=np.append(ledger.scopes.module, -1)[scope].astype(np.int32),
        op=np.array([words.number(known.operator) for known in costs], dtype=np.int32)[which],
        begin_ns=begin_ns,
        end_ns=end_ns,
        busy_ns=end_ns - begin_ns,
        num_kernels=np.array([_num_kernels(known) for known in costs], dtype=np.int64)[which],
    )


def _num_kernels(cost: Cost) -> int:
    return max(cost.num_kernels, 1)


def _kinds(ledger: Ledger, stream: Array, scope: Array, is_transfer: Array) -> Array:
    """Per kernel: its ``WorkKind``."""
    of_phase = np.array([*(_KINDS[phase] for phase in Phase), WorkKind.OTHER], dtype=np.uint8)
    phase, parent = np.append(ledger.scopes.phase.astype(np.int64), -1), np.append(ledger.scopes.parent, -1)
    kind: Array = of_phase[phase[scope]]
    around = scope
    while (around >= 0).any():
        kind[phase[around] == Phase.RECOMPUTE] = WorkKind.RECOMPUTE
        around = parent[around]
    kind[is_transfer] = WorkKind.COPY
    kind[stream <= COMMUNICATION] = WorkKind.COMMUNICATION
    return kind
