"""The clock of a prediction: every operator that the recorder sees, every module call and every task of FSDP's advances it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memfit.ledger import LedgerBuilder, Phase, RunInfo
from memfit.phantom.clock.operator_clock import OperatorClock
from memfit.record.blocks import BlockWriter
from memfit.record.listener import Listener
from memfit.record.operators import Plan
from memfit.timing.breakdown import RunTime
from memfit.timing.timeline import StepMark, Timeline


class TimedBuilder(LedgerBuilder):
    """A ledger whose events happen when the GPU would be done with what was issued before them."""

    def __init__(self, info: RunInfo, timeline: Timeline) -> None:
        super().__init__(info, clock=timeline.now_ns)
        self._timeline = timeline

    def step(self) -> None:
        self._timeline.mark_step()
        super().step()


class ClockObserver:
    """Advances the clock after each operator."""

    def __init__(self, clock: OperatorClock) -> None:
        self._clock = clock

    def plan(self, func: Any, write_outputs: Plan | None, blocks: BlockWriter) -> Plan | None:
        tick = self._clock.tick_of(func)
        if tick is None:
            return write_outputs
        if write_outputs is None:

            def plan_with_time(func: Any, args: Any, result: Any) -> None:
                tick(func, args, result, blocks.scopes.top)

            return plan_with_time

        def plan_with_outputs_and_time(func: Any, args: Any, result: Any) -> None:
            write_outputs(func, args, result)
            tick(func, args, result, blocks.scopes.top)

        return plan_with_outputs_and_time


class HostListener(Listener):
    """What the host does between operators: calls modules, prepares optimizers, manages FSDP's units."""

    def __init__(self, clock: OperatorClock) -> None:
        self._timeline, self._pace = clock.timeline, clock.pace

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._timeline.spend(self._pace.module)

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        num_parameters = sum(len(group["params"]) for group in optimizer.param_groups)
        self._timeline.spend(self._pace.optimizer + num_parameters * self._pace.optimizer_parameter)

    def enter_fsdp(self, phase: Phase, modules: Any) -> int | None:
        self._timeline.spend(self._pace.fsdp_task)
        return None


def run_time(clock: OperatorClock) -> RunTime:
    """What ran when, from the beginning until now: the end of the last step."""
    timeline, chip = clock.timeline, clock.chip
    timeline.synchronize()
    end = StepMark(timeline.host, len(timeline.spans), timeline.host_spent)
    return RunTime(
        spans=timeline.spans,
        costs=tuple(clock.costs),
        steps=(*timeline.steps, end),
        basis=chip.basis,
        interconnect=clock.links.name,
        peak_flops={kind: chip.product_flops(kind) for kind in ("bf16", "f16", "f32", "f8", "f64")} | {"tf32": chip.tf32_flops},
    )
