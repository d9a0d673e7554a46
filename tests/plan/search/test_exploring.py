"""Best first, with predictions that are made up: which are asked for, and what is known in the end."""

from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from helpers.compare_cells import configuration, figures
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.compare.recommendation import SAME_SPEED
from memfit.plan.search.candidate import Candidate
from memfit.plan.search.exploring import Exploration
from memfit.units import GIB
from memfit.workers.executors import Runner


def candidate(number: int, seconds: float, size: int = GIB, tp: int = 1, **others: object) -> Candidate:
    """Of a function, so that its seconds are those of a step."""
    inputs = {"function": "train.py:build", "number": number, "gpu": "H200", "world_size": 1, "tp": tp} | others
    return Candidate(asked=configuration(**inputs), least_seconds=seconds, least_bytes=size, kind=(number, tp))


class Oracle:
    """Knows what would be predicted, and notes what it was asked."""

    def __init__(self, answers: dict[int, Any], num_lanes: int = 1) -> None:
        self.answers, self.asked, self.finals = answers, [], []
        self.runner = Runner(self._answer, num_lanes, lambda: None)

    def _answer(self, job: dict[str, Any]) -> Future[dict[str, Any]]:
        number = job["inputs"]["number"]
        (self.finals if job["options"]["steps"] == 3 else self.asked).append(number)
        found, future = self.answers[number], Future[dict[str, Any]]()
        if isinstance(found, BaseException):
            future.set_exception(found)
        elif isinstance(found, str):
            future.set_result({"error": found, "details": ""})
        else:
            seconds, size = found
            future.set_result({"figures": asdict(figures(size / GIB, step_seconds=seconds)), "sources": {}})
        return future


def explored(candidates: list[Candidate], oracle: Oracle, limit: int = 100, room: int = 40 * GIB) -> Exploration:
    found = Exploration(candidates, room, oracle.runner, None)
    found.explore(limit)
    found.settle()
    return found


def test_what_cannot_beat_the_best_is_never_predicted():
    oracle = Oracle({0: (1.2, GIB), 1: (1.5, GIB), 2: (9.0, GIB)})
    found = explored([candidate(0, 1.0), candidate(1, 1.19), candidate(2, 5.0)], oracle)
    assert oracle.asked == [0], "1.19 may be faster than 1.2, but by less than a prediction of time is good for"
    assert oracle.finals == [0]
    assert found.best is not None
    assert found.best.is_final


def test_what_cannot_fit_is_never_predicted():
    oracle = Oracle({0: (1.0, GIB), 1: (2.0, GIB)})
    explored([candidate(0, 0.5, size=50 * GIB), candidate(1, 1.0)], oracle)
    assert oracle.asked == [1]


def test_one_that_does_not_fit_after_all_is_not_the_answer():
    oracle = Oracle({0: (1.0, 60 * GIB), 1: (2.0, GIB)})
    found = explored([candidate(0, 0.5), candidate(1, 1.0)], oracle)
    assert found.best is not None
    assert found.best.cell.inputs["number"] == 1


def test_where_one_fails_others_of_its_sort_come_last():
    answers: dict[int, Any] = {0: "no such operator", 1: "no such operator", 2: (3.0, GIB)}
    oracle = Oracle(answers)
    found = explored([candidate(0, 1.0, tp=2), candidate(1, 1.1, tp=2), candidate(2, 1.3)], oracle)
    assert oracle.asked == [0, 2, 1]
    assert found.best is not None


def test_what_failures_have_in_common_is_tried_last():
    compiled = {"compile": "blocks", "ep": 8}
    candidates = [
        candidate(0, 1.0, **compiled),
        candidate(1, 1.1, tp=2, **compiled),
        candidate(2, 1.2, cp=2, **compiled),
        candidate(3, 1.3, tp=2, cp=2, **compiled),
        candidate(4, 4.0, compile="blocks"),
        candidate(5, 4.5, ep=8),
    ]
    answers: dict[int, Any] = {number: f"cannot broadcast {number} elements" for number in range(4)}
    oracle = Oracle(answers | {4: (9.0, GIB), 5: (8.0, GIB)})
    explored(candidates, oracle, limit=4)
    assert oracle.asked == [0, 1, 4, 5], "compiling alone is no reason to fail, nor are experts alone"


def test_an_executor_that_fails_is_a_failed_prediction():
    oracle = Oracle({0: RuntimeError("the cluster is gone"), 1: (1.0, GIB)})
    found = explored([candidate(0, 0.1), candidate(1, 0.2)], oracle)
    assert [each.cell.error for each in found.tried[:1]] == ["RuntimeError: the cluster is gone"]
    assert found.best is not None


def test_a_limit_leaves_something_and_it_is_known_what():
    oracle = Oracle({number: (2.0 + number, GIB) for number in range(5)})
    found = explored([candidate(number, 1.0 + 0.1 * number) for number in range(5)], oracle, limit=2)
    assert oracle.asked == [0, 1]
    assert [each.inputs["number"] for each in found.open_candidates()] == [2, 3, 4]


def test_stopping_keeps_what_is_known():
    class Impatient(Oracle):
        def _answer(self, job: dict[str, Any]) -> Future[dict[str, Any]]:
            if self.asked:
                raise KeyboardInterrupt
            return super()._answer(job)

    found = explored([candidate(0, 1.0), candidate(1, 1.1)], Impatient({0: (2.0, GIB), 1: (1.5, GIB)}))
    assert found.was_stopped
    assert found.best is not None
    assert found.best.cell.inputs["number"] == 0


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0.1, 10), st.floats(1, 3), st.integers(1, 60), st.floats(1, 3), st.integers(1, 2)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 3),
)
def test_it_finds_the_fastest_that_fits(rows: list[Any], num_lanes: int):
    """Whatever the bounds, as long as they are bounds; but for what is as fast."""
    candidates, answers = [], {}
    for number, (bound, ratio, size, larger, tp) in enumerate(rows):
        candidates.append(candidate(number, bound, size * GIB, tp))
        answers[number] = (bound * ratio, int(size * larger * GIB))
    fitting = [seconds for seconds, size in answers.values() if size <= 40 * GIB]
    best = explored(candidates, Oracle(answers, num_lanes)).best
    assert (best is None) == (not fitting)
    if best is not None:
        assert best.seconds * (1 - SAME_SPEED) <= min(fitting)


def test_the_same_search_again_asks_for_the_same_whichever_is_done_first():
    def asked(slow_one: int) -> list[int]:
        answers = {number: (2.0 + 0.1 * number, GIB) for number in range(6)}
        oracle = Oracle(answers, num_lanes=2)
        held: list[tuple[Future[dict[str, Any]], dict[str, Any]]] = []
        answer = oracle._answer

        def out_of_order(job: dict[str, Any]) -> Future[dict[str, Any]]:
            found, later = answer(job), Future[dict[str, Any]]()
            held.append((later, found.result()))
            if len(held) == 2 or job["options"]["steps"] == 3:
                for future, result in sorted(held, key=lambda each: each[1]["figures"]["step_seconds"] * slow_one):
                    future.set_result(result)
                held.clear()
            return later

        oracle.runner = Runner(out_of_order, 2, lambda: None)
        explored([candidate(number, 1.0 + 0.01 * number, tp=1 + number % 2) for number in range(6)], oracle)
        return oracle.asked

    assert asked(1) == asked(-1)
