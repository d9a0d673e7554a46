"""The search with trials that are made up: what it asks for, and what it learns from the answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from memfit.plan.checkpointing.recorded import RecordedCall, RecordedUnit
from memfit.plan.checkpointing.search import Search
from memfit.plan.checkpointing.units import UnitKind
from memfit.plan.policy import CheckpointingPolicy

NUM_UNITS, SAVED, LIMIT = 8, 100, 500


class MadeUpTrials:
    """Each unit that is left as it is keeps ``SAVED`` bytes; where units at the end of forward are among them, gaps cost more."""

    budget_bytes = LIMIT

    def __init__(self, gap: int, waits_for_its_host: bool) -> None:
        self._gap, self._waits_for_its_host = gap, waits_for_its_host
        self.done: dict[CheckpointingPolicy | None, Any] = {}

    @property
    def all(self) -> list[Any]:
        return list(self.done.values())

    def knows(self, policy: CheckpointingPolicy | None) -> bool:
        return policy in self.done

    def run(self, policy: CheckpointingPolicy | None) -> Any:
        kept = NUM_UNITS if policy is None else len(policy.untouched)
        has_gaps = kept > 0 and (policy is None or f"layers.{NUM_UNITS - 1}" in policy.untouched)
        need = SAVED * kept + self._gap * has_gaps
        self.done[policy] = SimpleNamespace(
            policy=policy,
            smallest_fit=need,
            need=need,
            certain_need=need,
            chooses_operators=policy is not None and any(group.choices for group in policy.groups),
            waits_for_its_host=self._waits_for_its_host,
            completes=need <= LIMIT,
            fits=need <= LIMIT,
            seconds=10.0 + NUM_UNITS - kept,
            prediction=SimpleNamespace(peak_allocated=SAVED * kept),
        )
        return self.done[policy]


def searched(gap: int, max_trials: int = 20, num_calls: int = 1, waits_for_its_host: bool = False) -> MadeUpTrials:
    calls = tuple(RecordedCall(operator="mm", call=call, seconds=1.0, size_bytes=SAVED // num_calls) for call in range(num_calls))
    units = [
        RecordedUnit(name=f"layers.{number}", kind="Block", calls=calls, saved_bytes=SAVED, order=number)
        for number in range(NUM_UNITS)
    ]
    trials: Any = MadeUpTrials(gap, waits_for_its_host)
    search = Search(
        [UnitKind(units=tuple(units))],
        trials,
        max_trials=max_trials,
        deadline=float("inf"),
        link_bytes_per_second=None,
        progress=lambda sentence: None,
    )
    search.run(trials.run(None))
    return trials


def fastest(trials: MadeUpTrials) -> CheckpointingPolicy:
    return min((trial for trial in trials.all if trial.fits), key=lambda trial: trial.seconds).policy


def test_units_that_compute_again_come_first_where_that_fits() -> None:
    tried = [trial.policy.untouched for trial in searched(gap=0).all if trial.policy is not None and trial.fits]
    assert ("layers.3", "layers.4", "layers.5", "layers.6", "layers.7") in tried


def test_where_the_front_leaves_gaps_another_placement_keeps_as_many_units() -> None:
    policy = fastest(searched(gap=150))
    assert len(policy.untouched) == 5
    assert "layers.7" not in policy.untouched


def test_what_allocates_too_much_is_not_tried_with_other_placements() -> None:
    simple = ("layers.0", "layers.3", "layers.6")  # every third
    too_much = [
        trial
        for trial in searched(gap=0).all
        if trial.policy is not None and len(trial.policy.untouched) > 5 and trial.policy.units != simple
    ]
    assert len({len(trial.policy.untouched) for trial in too_much}) == len(too_much)


def test_placements_are_counted_as_trials() -> None:
    trials = searched(gap=150, max_trials=3)
    assert len(trials.all) <= 2 + 3 + 2  # as it is and the least, every second and every third


def test_simple_ways_are_tried_whatever_the_solver_says() -> None:
    tried = {trial.policy.units for trial in searched(gap=10_000, max_trials=0).all if trial.policy is not None}
    every = [tuple(f"layers.{number}" for number in range(0, NUM_UNITS, step)) for step in (1, 2, 3)]
    assert tried >= set(every)


def test_operators_are_not_tried_where_the_gpu_waits_for_its_host() -> None:
    assert any(trial.chooses_operators for trial in searched(gap=0, num_calls=2).all)
    assert not any(trial.chooses_operators for trial in searched(gap=0, num_calls=2, waits_for_its_host=True).all)
