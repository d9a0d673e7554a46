"""Best first: the candidate that is expected to be the fastest is predicted next, and whatever cannot beat the best is never.

::

    open candidates ── bound too high, or too large? ──> left out; siblings.py carries what is known of one over to others
        │
        v   the least expected time: its bound, times how far above theirs others of its sort were
    predicted, several at a time ──> best that fits ──> what is slower by its bound is left out
        │
        v
    the best one again, with all of its steps and ranks; the next best where it does not hold what it promised

It ends when nothing is left that could be noticeably faster, when as many were predicted as the user wants, or when the user stops
it. After half of these it ends when nothing is left that could be faster by a tenth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from memfit.compare.cache import CellCache
from memfit.compare.recommendation import SAME_SPEED, burden
from memfit.job import Cell
from memfit.plan.search.candidate import Candidate, Evaluated
from memfit.plan.search.jobs import job_of
from memfit.plan.search.siblings import does_no_less
from memfit.workers.executors import Answer, Runner

Progress = Callable[[int, int, "Evaluated | None"], None]
"""Told after every prediction: how many are done, how many there will be at most, and the best that fits so far."""

Features = frozenset[tuple[str, object]]

_NUMBERS = re.compile(r"\d+")
"""Sizes in what an error says differ from one configuration to the next."""

WORTH_THE_REST = 0.1
"""Of the fastest one's time: the second half of the predictions is for what might be faster by more than this."""

_UNLIKE_WHAT_IS_UNDER_WAY = 0.05
"""So much slower is a candidate expected to be that is like one whose figures are not there yet: others are tried first."""


@dataclass(eq=False)
class Exploration:
    """What is known so far."""

    candidates: list[Candidate]
    room: int
    """Bytes that a configuration may need."""
    runner: Runner
    known: CellCache | None
    progress: Progress = lambda done, most, best: None
    most: int = 0
    """Predictions of this search at most."""
    tried: list[Evaluated] = field(default_factory=list)
    was_stopped: bool = False
    """By the user."""
    _raised: dict[int, float] = field(default_factory=dict)
    """By candidate: seconds that it takes at least, by what was predicted of others."""
    _raised_bytes: dict[int, int] = field(default_factory=dict)
    """The same of bytes that it needs."""

    @property
    def best(self) -> Evaluated | None:
        """The fastest that fits; of several as fast, the cheapest to run. What was predicted in full counts, where it was."""
        fitting = self._fitting()
        as_fast = [each for each in fitting if _seconds(each) <= (1 + SAME_SPEED) * min(map(_seconds, fitting))]
        return min(as_fast, key=lambda each: burden(each.cell), default=None)

    @property
    def fastest_seconds(self) -> float:
        """Of all that fit."""
        return min(map(_seconds, self._fitting()), default=float("inf"))

    def _fitting(self) -> list[Evaluated]:
        finals = {id(each.candidate) for each in self.tried if each.is_final}
        return [each for each in self.tried if self.fits(each) and (each.is_final or id(each.candidate) not in finals)]

    def fits(self, tried: Evaluated) -> bool:
        figures = tried.cell.figures
        return figures is not None and figures.fits and figures.smallest_fit <= self.room

    # -- the search ---------------------------------------------------------------------------------------------------------------

    def explore(self, limit: int) -> None:
        """Predicts until nothing can be noticeably faster, or ``limit`` were predicted. Ctrl-C ends it; what is known stays.

        In rounds, as many at a time as are predicted side by side: which come next then does not depend on which is done first, and
        the same search again asks for the same, which the cache has.
        """
        num_started = 0
        while num_started < limit and not self.was_stopped:
            chosen: list[Candidate] = []
            worth = SAME_SPEED if num_started < limit / 2 else WORTH_THE_REST
            while len(chosen) < min(self.runner.num_lanes, limit - num_started):
                following = self._next(chosen, worth)
                if following is None:
                    break
                chosen.append(following)
            if not chosen:
                return
            num_started += len(chosen)
            self.predict(chosen)

    def settle(self) -> None:
        """The best one with all of its steps and ranks, until the best one is such."""
        while not self.was_stopped and (best := self.best) is not None and not best.is_final:
            self.predict([best.candidate], is_final=True)

    def predict(self, candidates: Sequence[Candidate], *, is_final: bool = False) -> None:
        """These, whatever their bounds say."""
        under_way: dict[Future[Answer], Candidate] = {}
        waiting, num_before = list(candidates), len(self.tried)
        try:
            while waiting or under_way:
                while waiting and len(under_way) < self.runner.num_lanes:
                    self._start(waiting.pop(0), under_way, is_final=is_final)
                if under_way:
                    self._collect(under_way, is_final=is_final)
        except KeyboardInterrupt:
            self.was_stopped = True
        order = {id(each): number for number, each in enumerate(candidates)}
        self.tried[num_before:] = sorted(self.tried[num_before:], key=lambda each: order[id(each.candidate)])

    def _start(self, chosen: Candidate, under_way: dict[Future[Answer], Candidate], *, is_final: bool) -> None:
        job = job_of(chosen.asked, is_final=is_final)
        known = self._known(chosen, job)
        if known is not None:
            self._note(chosen, known, is_final=is_final)
        else:
            under_way[self.runner.submit(job)] = chosen

    def _known(self, chosen: Candidate, job: dict[str, Any]) -> Cell | None:
        """From the cache."""
        if self.known is None:
            return None
        figures, failure = self.known.find(job), self.known.find_failure(job)
        if figures is not None:
            return Cell(configuration=chosen.asked, figures=figures, cached=True)
        return replace(Cell.of(chosen.asked, failure), cached=True) if failure is not None else None

    def _keep(self, chosen: Candidate, job: dict[str, Any], answer: Answer) -> None:
        if self.known is None:
            return
        if "figures" in answer:
            self.known.keep(job, answer)
        elif answer.get("is_lasting") and chosen.asked.subject.model:
            self.known.keep_failure(job, answer)

    def _collect(self, under_way: dict[Future[Answer], Candidate], *, is_final: bool) -> None:
        done, _ = wait(under_way, return_when=FIRST_COMPLETED)
        for future in done:
            chosen = under_way.pop(future)
            answer = _answer_of(future)
            self._keep(chosen, job_of(chosen.asked, is_final=is_final), answer)
            self._note(chosen, Cell.of(chosen.asked, answer), is_final=is_final)

    def _note(self, chosen: Candidate, cell: Cell, *, is_final: bool) -> None:
        tried = Evaluated(candidate=chosen, cell=cell, is_final=is_final)
        self.tried.append(tried)
        for each in self.candidates:
            self._raised[id(each)] = max(self._raised.get(id(each), 0.0), tried.bounds(each))
            self._raised_bytes[id(each)] = max(self._raised_bytes.get(id(each), 0), tried.bounds_bytes(each))
        self.progress(len(self.tried), max(self.most, len(self.tried)), self.best)

    # -- which one is next --------------------------------------------------------------------------------------------------------

    def open_candidates(self) -> list[Candidate]:
        """Those that may fit, and may be faster than the best by more than a prediction of time can be wrong."""
        most = self.fastest_seconds * (1 - SAME_SPEED)
        tried = {id(each.candidate) for each in self.tried}
        return [
            each
            for each in self.candidates
            if self.least_bytes(each) <= self.room and self.least_seconds(each) < most and id(each) not in tried
        ]

    def least_seconds(self, candidate: Candidate) -> float:
        """By its sizes, and by what was predicted of others."""
        return max(candidate.least_seconds, self._raised.get(id(candidate), 0.0))

    def least_bytes(self, candidate: Candidate) -> int:
        return max(candidate.least_bytes, self._raised_bytes.get(id(candidate), 0))

    def _next(self, under_way: Sequence[Candidate], worth: float) -> Candidate | None:
        """``worth``: as a share of the fastest one's time, by how much it might be faster."""
        started, most = {id(each) for each in under_way}, self.fastest_seconds * (1 - worth)
        left = [each for each in self.open_candidates() if id(each) not in started and self.least_seconds(each) < most]
        suspicions = self._suspicions()
        return min(left, key=lambda each: self._promise(each, under_way, suspicions), default=None)

    def _suspicions(self) -> list[Features]:
        """What those have in common that failed with the same words, and none that could be predicted has."""
        failed: dict[str, list[Features]] = {}
        for each in self.tried:
            if each.cell.figures is None:
                failed.setdefault(_NUMBERS.sub("", each.cell.error), []).append(each.candidate.features)
        common = (frozenset.intersection(*features) for features in failed.values() if len(features) > 1)
        worked = [each.candidate.features for each in self.tried if each.cell.figures is not None]
        return [features for features in common if not any(features <= others for others in worked)]

    def _promise(
        self, candidate: Candidate, under_way: Sequence[Candidate], suspicions: Sequence[Features]
    ) -> tuple[bool, bool, bool, float]:
        """Sort key: (likely to fail, likely too large, likely left out by what is under way, expected seconds)."""
        has_failed = any(each.cell.figures is None and each.candidate.can_fail_like(candidate) for each in self.tried)
        has_failed = has_failed or any(features <= candidate.features for features in suspicions)
        likest = max((candidate.likeness(other) for other in under_way), default=0.0)
        expected = self.expected_seconds(candidate) * (1 + _UNLIKE_WHAT_IS_UNDER_WAY * likest)
        follows = any(other.group == candidate.group and does_no_less(candidate.work, other.work) for other in under_way)
        return has_failed, self.expected_bytes(candidate) > self.room, follows, expected

    def expected_seconds(self, candidate: Candidate) -> float:
        """Its bound, times how far above its own the one of its sort is that is most like it."""
        other = self._likest(candidate)
        expected = candidate.least_seconds * (other.time_ratio if other is not None else candidate.usual_ratio)
        return max(expected, self.least_seconds(candidate))

    def expected_bytes(self, candidate: Candidate) -> float:
        other = self._likest(candidate)
        return candidate.least_bytes * (other.memory_ratio if other is not None else 1.0)

    def _likest(self, candidate: Candidate) -> Evaluated | None:
        """Of those of its sort that were predicted; ``None`` where none was."""
        same = [each for each in self.tried if each.seconds is not None and each.candidate.sort == candidate.sort]
        return max(same, key=lambda each: candidate.likeness(each.candidate), default=None)


def _seconds(tried: Evaluated) -> float:
    return tried.seconds if tried.seconds is not None else float("inf")


def _answer_of(future: Future[Answer]) -> Answer:
    try:
        return future.result()
    except Exception as error:  # the executor's own: a worker that died, a cluster that went away
        said, _, rest = str(error).strip().partition("\n")
        return {"error": f"{type(error).__name__}: {said}".removesuffix(": "), "details": rest}
