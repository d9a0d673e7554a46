"""The course of a run: legs with exact bytes."""

from dataclasses import replace

import numpy as np

from memfit.analysis import INIT, Course, find_course
from memfit.ledger import ActivityKind, Coverage, Ledger
from memfit.ledger.schema import Activity
from memfit.testing import ledger
from memfit.units import MIB

TRAINING, EVALUATION, SAVE = ActivityKind.TRAINING, ActivityKind.EVALUATION, ActivityKind.SAVE
RUN = """
    alloc 1MiB parameter w on cuda:0
    step; alloc 4MiB a on cuda:0; free a
    step; alloc 8MiB b on cuda:0; free b
    step; alloc 16MiB c on cuda:0; free c; alloc 2MiB d on cuda:0; free d
    step; alloc 32MiB e on cuda:0; free e; alloc 64MiB f on cuda:0; free f
"""


def told(run: Ledger, *rows: tuple[str, ActivityKind, int, str], evaluations: int) -> Ledger:
    """The run with what a script did just before blocks came, named by their letters."""
    allocs = {name: int(run.birth[number]) for number, name in enumerate("wabcdef")}
    strings = (*run.strings, *(batch for *_, batch in rows))
    numbers = [len(run.strings) + place if row[3] else -1 for place, row in enumerate(rows)]
    table = [(allocs[at], int(kind), which, number) for (at, kind, which, _), number in zip(rows, numbers, strict=True)]
    covered = Coverage(training_steps=3, evaluations=evaluations)
    return replace(
        run,
        strings=strings,
        activity=Activity.from_rows(np.array(table).ravel().tolist()),
        info=replace(run.info, covered=covered),
    ).check()


def legs(course: Course) -> list[tuple[str, int, int, int, str]]:
    return [(leg.kind.name, leg.number, leg.step, leg.peak_bytes // MIB, leg.batch) for leg in course.legs]


def test_evaluations_and_saves_stand_between_steps():
    run = told(
        ledger(RUN),
        ("a", TRAINING, 0, "8 x 100"),
        ("b", TRAINING, 1, "8 x 900"),
        ("c", EVALUATION, 0, "16 x 30"),
        ("d", TRAINING, 2, "8 x 20"),
        ("e", EVALUATION, 1, "16 x 40"),
        ("f", SAVE, 0, ""),
        evaluations=2,
    )
    course = find_course(run, 0)
    assert legs(course) == [
        ("TRAINING", INIT, INIT, 1, ""),
        ("TRAINING", 0, 0, 5, "8 x 100"),
        ("TRAINING", 1, 1, 9, "8 x 900"),
        ("TRAINING", 2, 2, 3, "8 x 20"),
        ("EVALUATION", 0, 1, 17, "16 x 30"),
        ("EVALUATION", 1, 2, 33, "16 x 40"),
        ("SAVE", 0, 2, 65, ""),
    ]
    assert (course.highest_step.number, course.largest_batch.number, course.highest_evaluation.number) == (1, 1, 1)


def test_calls_without_gradients_in_every_step_are_a_part_of_it():
    run = told(
        ledger(RUN), ("a", EVALUATION, 0, "4 x 4"), ("b", EVALUATION, 1, "4 x 8"), ("c", TRAINING, 2, "2 x 2"), evaluations=0
    )
    course = find_course(run, 0)
    assert course.evaluations == ()
    assert [leg.peak_bytes // MIB for leg in course.steps] == [5, 9, 17]


def test_a_run_of_which_nothing_says_what_it_did_has_steps():
    course = find_course(ledger(RUN), 0)
    assert legs(course)[1:] == [("TRAINING", step, step, peak, "") for step, peak in enumerate((5, 9, 17, 65))]
    assert course.largest_batch is None


def test_the_file_keeps_it(tmp_path):
    run = told(ledger(RUN), ("a", TRAINING, 0, "8 x 100"), evaluations=1)
    run.save(tmp_path / "run.memfit")
    assert find_course(Ledger.load(tmp_path / "run.memfit").check(), 0) == find_course(run, 0)
