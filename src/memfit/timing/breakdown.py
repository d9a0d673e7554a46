"""Where the time of a step goes, computed from the times of what ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from memfit.timing.operators.calls import Cost
from memfit.timing.timeline import COMMUNICATION, Array, Spans, StepMark


@dataclass(frozen=True, kw_only=True)
class TimeBreakdown:
    """The time of one step, in seconds. ``compute``, ``exposed_communication`` and ``idle`` add up to ``total``."""

    total: float
    compute: float
    """Time in which a kernel other than a collective runs."""
    exposed_communication: float
    """Time in which only collectives run."""
    idle: float
    """Time in which the GPU waits for the host."""
    recompute: float
    """Of ``compute``: recomputation by checkpointing."""
    host: float
    """Time in which the host issues work, mostly while the GPU computes."""
    communication: float
    """Collectives, overlapped or not."""
    by_module: dict[str, float] = field(default_factory=dict)
    """Kernels of each module's forward and backward, those of modules inside it included."""
    by_operator: dict[str, float] = field(default_factory=dict)
    """Kernels of each operator."""


@dataclass(frozen=True, kw_only=True)
class RunTime:
    """The predicted times of everything that ran."""

    spans: Spans
    costs: tuple[Cost, ...]
    steps: tuple[StepMark, ...]
    """Where each step begins; the last mark is the end of the last step."""
    basis: str
    """What the prices are based on."""
    interconnect: str
    peak_flops: dict[str, float]
    """The GPU's peak, by type."""
    gap_seconds: float = 0.0
    """The gap between two consecutive kernels."""
    host_days: tuple[float, float] = (1.0, 1.0)
    """How many times as long as it is taken to the host may need, on a fast day and on a slow one."""

    @property
    def num_steps(self) -> int:
        return max(0, len(self.steps) - 1)

    def with_last_step_again(self, times: int, *, sooner: float, first_scope: int, num_scopes: int) -> RunTime:
        """Repeats the last step, each time ``sooner`` seconds earlier after the previous step. ``first_scope`` is the first of
        its scopes; each time, it has ``num_scopes`` new ones."""
        first, end = self.steps[-2:]
        part = slice(first.span, end.span)
        stream, begin, seconds, cost, scope = (getattr(self.spans, column.name)[part] for column in fields(Spans))
        into_step = begin - first.seconds - sooner
        total, host = end.seconds - first.seconds - sooner, end.host_seconds - first.host_seconds - sooner
        spans, marks = [self.spans], list(self.steps)
        for number in range(1, times + 1):
            new_scope = np.where(scope >= first_scope, scope + number * num_scopes, scope)
            last = marks[-1]
            spans.append(Spans(stream, last.seconds + into_step, seconds, cost, new_scope))
            marks.append(StepMark(last.seconds + total, last.span + len(begin), last.host_seconds + host))
        return replace(self, spans=Spans.joined(spans), steps=tuple(marks))

    def without_last_step(self) -> RunTime:
        """The same up to the beginning of the last step, for a run that was stopped within it. Without any step where nothing was
        kept of the one before: long runs keep the last one alone."""
        left = self.steps[:-1]
        is_kept = len(left) > 1 and left[-2].span < left[-1].span
        return replace(self, steps=left if is_kept else ())

    def step_seconds(self, step: int = -1) -> float:
        first, end = self._marks(step)
        return end.seconds - first.seconds

    def step_seconds_range(self, step: int = -1) -> tuple[float, float]:
        """What a step takes with the fastest and the slowest host that was seen. Where the GPU never waits, only a host that has
        more to do than the GPU makes it longer."""
        first, end = self._marks(step)
        part = slice(first.span, end.span)
        busy = covered_seconds(self.spans.begin[part], self.spans.seconds[part])
        total, host = end.seconds - first.seconds, end.host_seconds - first.host_seconds
        fast, slow = self.host_days
        low = max(busy, total - (1 - fast) * host)
        return min(total, low), max(total + (slow - 1) * (total - busy), slow * host)

    def flops(self, step: int = -1, but_not: frozenset[int] = frozenset()) -> dict[str, float]:
        """FLOPs of matrix products and attention, by type; ``but_not`` are scopes to ignore: recomputation."""
        found: dict[str, float] = {}
        first, end = self._marks(step)
        for number, scope in zip(self.spans.cost[first.span : end.span], self.spans.scope[first.span : end.span], strict=True):
            cost = self.costs[number]
            if cost.flops and scope not in but_not:
                found[cost.flops_type] = found.get(cost.flops_type, 0.0) + cost.flops
        return found

    def tokens(self, step: int = -1, but_not: frozenset[int] = frozenset(), module_of_scope: Sequence[int] | Array = ()) -> int:
        """Lookups of the embedding with the most of them. ``module_of_scope`` distinguishes embeddings with
        equally many, such as those of tokens and of positions."""
        found: dict[tuple[int, int], int] = {}
        first, end = self._marks(step)
        for number, scope in self._costs_and_scopes(first, end):
            if self.costs[number].tokens and scope not in but_not:
                module = int(module_of_scope[scope]) if 0 <= scope < len(module_of_scope) else -1
                found[module, number] = found.get((module, number), 0) + self.costs[number].tokens
        return max(found.values(), default=0)

    def _costs_and_scopes(self, first: StepMark, end: StepMark) -> Iterator[tuple[int, int]]:
        part = slice(first.span, end.span)
        return zip(self.spans.cost[part].tolist(), self.spans.scope[part].tolist(), strict=True)

    def _marks(self, step: int) -> tuple[StepMark, StepMark]:
        number = range(self.num_steps)[step]
        return self.steps[number], self.steps[number + 1]

    def breakdown(
        self,
        step: int = -1,
        *,
        recomputed: frozenset[int] = frozenset(),
        module_of_scope: Sequence[int] = (),
        module_paths: Sequence[str] = (),
    ) -> TimeBreakdown:
        """``recomputed`` are the numbers of the scopes of recomputation."""
        first, end = self._marks(step)
        part = slice(first.span, end.span)
        stream, begin, seconds = self.spans.stream[part], self.spans.begin[part], self.spans.seconds[part]
        scope, cost = self.spans.scope[part], self.spans.cost[part]
        is_compute = stream > COMMUNICATION
        busy = covered_seconds(begin, seconds)
        compute = covered_seconds(begin[is_compute], seconds[is_compute])
        total = end.seconds - first.seconds
        again = np.isin(scope, np.fromiter(recomputed, int, len(recomputed))) & is_compute
        return TimeBreakdown(
            total=total,
            compute=compute,
            exposed_communication=busy - compute,
            idle=total - busy,
            recompute=covered_seconds(begin[again], seconds[again]),
            host=end.host_seconds - first.host_seconds,
            communication=covered_seconds(begin[~is_compute], seconds[~is_compute]),
            by_module=_by_module(scope[is_compute], seconds[is_compute], module_of_scope, module_paths),
            by_operator=_by_operator(cost, seconds, self.costs),
        )


def covered_seconds(begin: Array, seconds: Array) -> float:
    """Total time covered by at least one span."""
    if not len(begin):
        return 0.0
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], (begin + seconds)[order]
    reached = np.maximum.accumulate(end)
    starts = np.maximum(begin[1:], reached[:-1])
    return float(end[0] - begin[0] + np.maximum(end[1:] - starts, 0.0).sum())


def _by_operator(cost: Array, seconds: Array, costs: Sequence[Cost]) -> dict[str, float]:
    found: dict[str, float] = {}
    for number, spent in zip(*_sums(cost, seconds), strict=True):
        name = costs[number].operator
        found[name] = found.get(name, 0.0) + spent
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _by_module(scope: Array, seconds: Array, module_of_scope: Sequence[int], paths: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for number, spent in zip(*_sums(scope, seconds), strict=True):
        module = module_of_scope[number] if 0 <= number < len(module_of_scope) else -1
        path = paths[module] if module >= 0 else ""
        while path:
            found[path] = found.get(path, 0.0) + spent
            path = path.rpartition(".")[0]
    return found


def _sums(keys: Array, seconds: Array) -> tuple[list[int], list[float]]:
    if not len(keys):
        return [], []
    different, place = np.unique(keys, return_inverse=True)
    return different.tolist(), np.bincount(place, weights=seconds).tolist()
