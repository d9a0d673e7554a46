from __future__ import annotations

import numpy as np

from memfit.analysis import take_snapshots
from memfit.ledger import Category, LedgerBuilder, Phase
from memfit.testing import ledger

PARAMETER, ACTIVATION, TEMPORARY = Category.PARAMETER, Category.ACTIVATION, Category.FORWARD_TEMPORARY

RUN = ledger(
    """
    alloc 100 parameter a.w; alloc 1 gpu on cuda:0
    enter forward a; alloc 10 x; alloc 5 tmp; free tmp; free gpu; exit
    enter backward; enter backward a; free x
    """
)


def test_each_time_something_ran_has_its_snapshots():
    forward, whole, backward = take_snapshots(RUN)
    assert [(s.scope, s.module, s.phase) for s in (forward, whole, backward)] == [
        (0, 1, Phase.FORWARD),
        (1, -1, Phase.BACKWARD),
        (2, 1, Phase.BACKWARD),
    ]
    assert forward.enter == {"cpu": {PARAMETER: 100}, "cuda:0": {Category.OTHER: 512}}
    assert forward.peak == {"cpu": {PARAMETER: 100, ACTIVATION: 10, TEMPORARY: 5}, "cuda:0": {Category.OTHER: 512}}
    assert forward.exit == {"cpu": {PARAMETER: 100, ACTIVATION: 10}, "cuda:0": {}}
    assert backward.enter == backward.peak == {"cpu": {PARAMETER: 100, ACTIVATION: 10}, "cuda:0": {}}


def test_a_scope_that_is_still_open_has_no_exit():
    assert [snapshots.exit is None for snapshots in take_snapshots(RUN)] == [False, True, True]


def test_only_the_scopes_asked_for():
    assert [snapshots.scope for snapshots in take_snapshots(RUN, np.array([2, 0]))] == [2, 0]
    assert take_snapshots(RUN, np.array([], dtype=int)) == []


def test_no_devices():
    builder = LedgerBuilder()
    builder.exit(builder.enter(Phase.FORWARD))
    (only,) = take_snapshots(builder.build())
    assert only.enter == only.peak == only.exit == {}
