"""The clock of a prediction: every operator that the recorder sees, every module call and every task of FSDP's advances it."""

from __future__ import annotations

from typing import Any

from memfit.ledger import LedgerBuilder, Phase, RunInfo
from memfit.phantom.clock.operator_clock import OperatorClock
from memfit.record.blocks import BlockWriter
from memfit.record.operators import Plan
from memfit.timing.breakdown import RunTime
from memfit.timing.host import DISTRIBUTED_OPERATOR


class TimedBuilder(LedgerBuilder):
    """A ledger whose events happen when the GPU would be done with what was issued before them.

    Where a scope begins, the host does what no operator shows: it calls a module, or prepares one of FSDP's tasks.
    """

    def __init__(self, info: RunInfo, clock: OperatorClock) -> None:
        super().__init__(info, clock=clock.timeline.now_ns)
        self._timeline, self._clock_of_operators = clock.timeline, clock
        self._spent = {int(phase): clock.pace.scopes.get(phase.name, 0.0) for phase in Phase}
        self._recomputes: set[int] = set()
        self._num_distributed = 0
        self._paid_at_step = 0.0

    def enter(self, phase: Phase | int, module: int = -1, parent: int = -1, size: int = 0) -> int:
        spent = self._spent[phase]
        scope = super().enter(phase, module, parent, size)
        if phase == Phase.RECOMPUTE:
            if parent not in self._recomputes:
                spent += self._clock_of_operators.pace.checkpoint
            self._recomputes.add(scope)
        self._timeline.spend(spent + self._settle())
        return scope

    def step(self) -> None:
        """What the step before left unpaid is paid before anything else of this one."""
        self._timeline.mark_step()
        super().step()
        self._paid_at_step = self._settle()
        self._timeline.spend(self._paid_at_step)

    def sooner_next_time(self) -> float:
        """By how many seconds all of the last step would be earlier in a step that does the same and begins now.

        Both begin with idle streams, and pay first for what the step before left unpaid: after the first step that is more, because
        there the optimizer makes its state.
        """
        return self._paid_at_step - self._owed()

    def _owed(self) -> float:
        """What operators on distributed tensors took since a scope began: whatever begins next pays for it."""
        return (self._clock_of_operators.num_distributed() - self._num_distributed) * DISTRIBUTED_OPERATOR

    def _settle(self) -> float:
        owed = self._owed()
        self._num_distributed = self._clock_of_operators.num_distributed()
        return owed


class ClockObserver:
    """Advances the clock after each operator."""

    def __init__(self, clock: OperatorClock) -> None:
        self._clock = clock

    def plan(self, func: Any, write_outputs: Plan | None, blocks: BlockWriter) -> Plan | None:
        tick, give_up_on = self._clock.tick_of(func), self._clock.give_up_on
        if tick is None:
            return write_outputs

        def plan_with_time(func: Any, args: Any, result: Any) -> None:
            if write_outputs is not None:
                write_outputs(func, args, result)
            try:
                tick(func, args, result, blocks.scopes.top)
            except Exception as error:
                give_up_on(func, error)

        return plan_with_time


def run_time(clock: OperatorClock) -> RunTime:
    """What ran when, from the beginning until now: the end of the last step."""
    timeline, chip = clock.timeline, clock.chip
    return RunTime(
        spans=timeline.spans(),
        costs=tuple(clock.costs),
        steps=(*timeline.steps, timeline.now()),
        basis=chip.basis,
        interconnect=clock.links.name,
        peak_flops={kind: chip.product_flops(kind) for kind in ("bf16", "f16", "f32", "f8", "f64")} | {"tf32": chip.tf32_flops},
    )
