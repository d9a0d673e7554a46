"""What each stream did in the last step: exact on a timeline made by hand, and in agreement with where a step's time goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.feed_forward import Block
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import memfit
from memfit.analysis import find_window, trace_lanes
from memfit.ledger import Ledger, LedgerBuilder, Phase, WorkKind
from memfit.predict.work import with_work
from memfit.timing.breakdown import RunTime
from memfit.timing.operators.calls import Bound, Cost
from memfit.timing.timeline import Timeline

MM, ADD, GATHER, COPY = range(4)
COSTS = (
    Cost("mm", 1.0, Bound.ARITHMETIC),
    Cost("add", 1.0, Bound.MEMORY, num_kernels=2),
    Cost("all_gather", 1.0, Bound.LINK),
    Cost("copy_", 1.0, Bound.LINK),
)
MICRO = 1e-6


def scoped() -> Ledger:
    """Scopes 0: forward of a, 1: backward of a, 2: computing a again inside it, 3: forward of a.b in that, 4: the optimizer."""
    builder = LedgerBuilder()
    outer = builder.module("a", "A")
    inner = builder.module("a.b", "B", outer)
    builder.exit(builder.enter(Phase.FORWARD, outer))
    backward = builder.enter(Phase.BACKWARD, outer)
    again = builder.enter(Phase.RECOMPUTE, outer, backward)
    builder.enter(Phase.FORWARD, inner, again)
    builder.enter(Phase.OPTIMIZER)
    return builder.build()


def test_spans_of_a_timeline_made_by_hand() -> None:
    timeline = Timeline(gap_seconds=MICRO)
    timeline.mark_step()
    timeline.run(0, 50 * MICRO, MM, 0)  # of the step before the last
    timeline.mark_step()
    begin = round(1e9 * timeline.host)
    timeline.spend(10 * MICRO)
    timeline.run(0, 20 * MICRO, MM, 0)
    timeline.run(0, 5 * MICRO, ADD, 0)
    end = timeline.communicate(0, 0, 40 * MICRO, GATHER, 0)
    timeline.run(2, 7 * MICRO, COPY, -1)
    timeline.run(0, 3 * MICRO, MM, 3)
    timeline.wait(0, end)
    timeline.run(0, 4 * MICRO, MM, 1)
    timeline.run(0, 6 * MICRO, MM, 4)
    marks = (*timeline.steps, timeline.now())
    time = RunTime(spans=timeline.spans(), costs=COSTS, steps=marks, basis="", interconnect="", peak_flops={}, gap_seconds=MICRO)
    ledger = with_work(scoped(), time, {0: "mesh_dp"}).check()
    found = {
        (lane.stream, lane.group): [
            (
                WorkKind(kind).label,
                ledger.module_path(module),
                ledger.strings[op],
                *(round((value - start) / 1000) for value, start in ((first, begin), (last, begin), (busy, 0))),
                kernels,
            )
            for kind, module, op, first, last, busy, kernels in zip(
                *(
                    getattr(lane.work, name).tolist()
                    for name in ("kind", "module", "op", "begin_ns", "end_ns", "busy_ns", "num_kernels")
                ),
                strict=True,
            )
        ]
        for lane in trace_lanes(ledger)
    }
    assert found == {
        (0, ""): [
            # The GPU's own gap before each kernel is not worth two spans; waiting for a collective is.
            ("forward", "a", "mm", 10, 36, 25, 3),
            ("recompute", "a.b", "mm", 37, 40, 3, 1),
            ("backward", "a", "mm", 78, 82, 4, 1),
            ("optimizer", "", "mm", 83, 89, 6, 1),
        ],
        (2, ""): [("copy", "", "copy_", 10, 17, 7, 1)],
        (-1, "mesh_dp"): [("communication", "a", "all_gather", 37, 77, 40, 1)],
    }


def test_without_a_step_nothing_is_known() -> None:
    timeline = Timeline()
    timeline.run(0, 1.0, MM, 0)
    time = RunTime(spans=timeline.spans(), costs=COSTS, steps=(timeline.now(),), basis="", interconnect="", peak_flops={})
    assert len(with_work(scoped(), time, {}).work) == 0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def build(sharded: bool) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        model = Model().to("cuda", torch.bfloat16)
        if sharded:
            for layer in model.layers:
                fully_shard(layer)
            fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = torch.ones(8192, 512, dtype=torch.bfloat16).pin_memory()

        def step() -> None:
            model(batch.to("cuda", non_blocking=True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


@pytest.fixture(scope="module")
def alone() -> memfit.Prediction:
    return memfit.predict(build(False), gpu="H200", steps=2)


def test_lanes_are_busy_for_as_long_as_the_step_computes(alone: memfit.Prediction) -> None:
    (lane,) = trace_lanes(alone.ledger.check())
    parts = alone.time_breakdown
    assert parts is not None
    kinds = lane.busy_by_kind()
    assert lane.busy_ns == pytest.approx(1e9 * parts.compute, abs=len(lane.work))
    assert kinds[WorkKind.RECOMPUTE] == pytest.approx(1e9 * parts.recompute, abs=len(lane.work))
    assert set(kinds) == {*WorkKind} - {WorkKind.COMMUNICATION}
    window = find_window(alone.ledger)
    assert window is not None
    assert window.end_ns - window.begin_ns == pytest.approx(1e9 * parts.total, abs=2)


def test_communication_has_lanes_of_its_own() -> None:
    prediction = memfit.predict(build(True), gpu="H200", world_size=8, steps=2)
    lanes = {lane.stream: lane for lane in trace_lanes(prediction.ledger.check())}
    assert prediction.time_breakdown is not None
    assert lanes[-1].busy_ns == pytest.approx(1e9 * prediction.time_breakdown.communication, abs=len(lanes[-1].work))
    assert set(lanes[-1].busy_by_kind()) == {WorkKind.COMMUNICATION}
    modules = {prediction.ledger.module_path(number) for number in lanes[-1].work.module.tolist()}
    assert {"layers.0", "layers.1", "layers.2"} <= modules
    # FSDP packs what it gathers on a stream of its own.
    assert {WorkKind.COPY} in [set(lane.busy_by_kind()) for stream, lane in lanes.items() if stream > 0]


def test_a_long_step_is_kept_in_few_spans(alone: memfit.Prediction) -> None:
    assert alone.time is not None
    thinned, before = with_work(alone.ledger, alone.time, {}, most_spans=10).check(), alone.ledger
    assert len(thinned.work) <= 10 < len(before.work)
    assert thinned.work.busy_ns.sum() == before.work.busy_ns.sum()
    assert thinned.work.num_kernels.sum() == before.work.num_kernels.sum()
