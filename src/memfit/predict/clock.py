"""The clock of a prediction, advanced by every recorded operator, module call and engine task."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from memfit.engines import Engine, HostTask
from memfit.ledger import Ledger, LedgerBuilder, Phase, RunInfo
from memfit.ledger.cutting import rows
from memfit.ledger.schema import Blocks, EventKind, Events, Returns, Roles, Scopes
from memfit.phantom.clock.operator_clock import OperatorClock
from memfit.record.listener import Listener
from memfit.record.sources.operators.blocks import BlockWriter
from memfit.record.sources.operators.handlers import OutputHandler
from memfit.record.sources.operators.recorder import Recorder
from memfit.timing.basis import basis_of
from memfit.timing.breakdown import RunTime
from memfit.timing.timeline import Timeline
from memfit.torch_compat.autograd import graph_task_id

if TYPE_CHECKING:
    from memfit.predict.limit import MemoryLimit


class TimedBuilder(LedgerBuilder):
    """A ledger builder whose events happen when the GPU would have finished the work issued before them.

    When a scope begins, the host also pays for what no operator shows: the module call itself.
    """

    def __init__(self, info: RunInfo, clock: OperatorClock) -> None:
        super().__init__(info, clock=clock.timeline.now_ns)
        self.timeline, self._clock_of_operators = clock.timeline, clock
        self._spent_on_call: list[float] = []
        self._recomputes: set[int] = set()
        self._num_distributed = 0
        self._paid_at_step = 0.0
        self._late: LateReturns | None = None
        self.limit: MemoryLimit | None = None
        """The GPU's memory limit, if the run is to see out-of-memory errors."""

    # -- memory --------------------------------------------------------------------------------------------------------------

    def alloc(self, size: int, device: int, op: int, scope: int = -1, stream: int = 0) -> int:
        """Raises ``torch.OutOfMemoryError`` if there is a limit and it is reached."""
        if self._late is not None:
            self._late.collect(self.timeline.host)
        if self.limit is not None:
            self.limit.take(self.num_blocks, size, device, stream)
        return super().alloc(size, device, op, scope, stream)

    def free(self, block: int) -> None:
        super().free(block)
        is_in_use = self._late is not None and self._late.free(block)
        if self.limit is not None:
            self.limit.give_back(block, is_in_use=is_in_use)

    def resize(self, block: int, size: int) -> None:
        if self._late is not None:
            self._late.forget(block)
        if self.limit is not None:
            self.limit.resize(block, size)
        super().resize(block, size)

    def move(self, block: int, stream: int) -> None:
        if self.limit is not None:
            self.limit.move(block, stream)
        super().move(block, stream)

    def empty_cache(self, device: int) -> None:
        if self._late is not None:
            self._late.collect(inf)  # the allocator waits for all of them
        if self.limit is not None:
            self.limit.empty_cache()
        super().empty_cache(device)

    def came_back(self, block: int, events_later: int) -> None:
        super().came_back(block, events_later)
        if self.limit is not None:
            self.limit.complete(block)

    def used_on(self, block: int, stream: int) -> None:
        """Records that a block is used on another stream (``record_stream``). Runs that never call this pay nothing for it."""
        if self._late is None:
            self._late = LateReturns(self, self.timeline)
        self._late.use(block, stream)

    def append(self, events: Events, blocks: Blocks, scopes: Scopes, roles: Roles) -> None:
        """Raises ``torch.OutOfMemoryError`` if there is a limit and it is reached; the events before that are written."""
        served = len(events) if self.limit is None else self._serve(events, blocks, self.limit)
        if served == len(events):
            super().append(events, blocks, scopes, roles)
            return
        kind = events.kind[:served]
        num_blocks, num_scopes = (int(np.count_nonzero(kind == each)) for each in (EventKind.ALLOC, EventKind.ENTER))
        about = np.flatnonzero(roles.block < self.num_blocks + num_blocks)
        super().append(
            rows(events, np.arange(served)),
            rows(blocks, np.arange(num_blocks)),
            rows(scopes, np.arange(num_scopes)),
            rows(roles, about),
        )
        assert self.limit is not None
        self.limit.refuse_again()

    def _serve(self, events: Events, blocks: Blocks, limit: MemoryLimit) -> int:
        """The number of events that could be served."""
        served = limit.serve(events, blocks, self.num_blocks)
        if served is not None:
            return served
        devices, streams, first = blocks.device.tolist(), blocks.stream.tolist(), self.num_blocks
        for event, (kind, subject, size) in enumerate(
            zip(events.kind.tolist(), events.subject.tolist(), events.size.tolist(), strict=True)
        ):
            if kind == EventKind.ALLOC:
                try:
                    limit.take(subject, size, devices[subject - first], streams[subject - first])
                except torch.OutOfMemoryError:
                    return event
            elif kind == EventKind.FREE:
                limit.give_back(subject)
            elif kind == EventKind.RESIZE:
                limit.resize(subject, size)
            elif kind == EventKind.STREAM:
                limit.move(subject, size)
        return len(events)

    @property
    def follows_returns(self) -> bool:
        """True if some memory is returned to the allocator later than it is freed, because other streams use it."""
        return self._late is not None

    def build(self) -> Ledger:
        ledger = super().build()
        if self._late is None:
            return ledger
        return replace(ledger, returns=Returns.concatenate([ledger.returns, self._late.still_out()]))

    def module(self, path: str, kind: str, parent: int = -1, written: str = "") -> int:
        """Also notes the cost of the module's calls; torch's own modules are recognised by class name."""
        pace = self._clock_of_operators.pace
        self._spent_on_call.append(pace.module if hasattr(nn, kind) else pace.own_module)
        return super().module(path, kind, parent, written)

    def enter(self, phase: Phase | int, module: int = -1, parent: int = -1, size: int = 0) -> int:
        spent = self._spent_on_call[module] if phase == Phase.FORWARD and module >= 0 else 0.0
        scope = super().enter(phase, module, parent, size)
        if phase == Phase.RECOMPUTE:
            pace = self._clock_of_operators.pace
            spent = pace.recompute if parent in self._recomputes else pace.recompute + pace.checkpoint
            self._recomputes.add(scope)
            self._clock_of_operators.num_recomputing += 1
        self.timeline.spend(spent + self._settle())
        return scope

    def _leave(self, scope: int, size: int) -> None:
        if scope in self._recomputes:
            self._clock_of_operators.num_recomputing -= 1
        super()._leave(scope, size)

    def step(self, number: int | None = None) -> None:
        """Starts a step, which first pays what the previous step left unpaid."""
        self.timeline.mark_step()
        super().step(number)
        self._paid_at_step = self._settle()
        self.timeline.spend(self._paid_at_step)

    def sooner_next_time(self) -> float:
        """How many seconds earlier everything in the last step would happen if the step were repeated now.

        Both begin with idle streams and first pay what the previous step left unpaid; after the first step that is more, because
        the optimizer creates its state there.
        """
        return self._paid_at_step - self._owed()

    def _owed(self) -> float:
        """Host seconds of operators on distributed tensors since the last scope began; the next scope pays them."""
        each = self._clock_of_operators.pace.distributed_operator[graph_task_id() != -1]
        return (self._clock_of_operators.num_distributed - self._num_distributed) * each

    @property
    def num_unpaid(self) -> int:
        """Number of operators on distributed tensors that the host has not paid for."""
        return self._clock_of_operators.num_distributed - self._num_distributed

    def leave_unpaid(self, count: int) -> None:
        """Adds ``count``, which may be negative, to ``num_unpaid``."""
        self._num_distributed -= count

    def _settle(self) -> float:
        owed = self._owed()
        self._num_distributed = self._clock_of_operators.num_distributed
        return owed


class EngineTime(Listener):
    """Advances the clock by what the host spends on an engine's tasks.

    Attached after the recorder, so that a task is paid for inside its scope.
    """

    def __init__(self, builder: TimedBuilder, recorder: Recorder) -> None:
        self._builder, self._recorder = builder, recorder
        self._tasks: dict[int, tuple[HostTask, int, int]] = {}
        """Running tasks, each with the number of kernels and events when it began."""
        self._num_tasks = 0

    def listening(self) -> bool:
        return not self.failed and self._recorder.listening()

    def enter_task(self, engine: Engine | None, phase: Phase, modules: Any) -> int | None:
        task = engine.tasks.get(phase) if engine is not None else None
        if task is None:
            return None
        self._num_tasks += 1
        self._tasks[self._num_tasks] = (task, self._builder.timeline.num_spans, self._builder.num_events)
        self._builder.timeline.spend(task.seconds)
        return self._num_tasks

    def exit_task(self, depth: int) -> None:
        task, num_spans, num_events = self._tasks.pop(depth)
        is_idle = (num_spans, num_events) == (self._builder.timeline.num_spans, self._builder.num_events)
        if is_idle and task.idle_seconds is not None:  # weights that stay whole between microbatches, for one
            self._builder.timeline.spend(task.idle_seconds - task.seconds)


class LateReturns:
    """Freed memory that another stream still uses. It is returned when that stream has finished the work it had at that time.

    CUDA's allocator checks at every request which streams have finished. So whether memory can be reused depends on how
    far the host is ahead. A resized block, such as FSDP1's parameters, is assumed to be returned at once.
    """

    def __init__(self, builder: TimedBuilder, timeline: Timeline) -> None:
        self._builder, self._timeline = builder, timeline
        self._users: dict[int, set[int]] = {}
        self._waiting: list[tuple[float, int, int]] = []

    def use(self, block: int, stream: int) -> None:
        self._users.setdefault(block, set()).add(stream)

    def forget(self, block: int) -> None:
        self._users.pop(block, None)

    def free(self, block: int) -> bool:
        """Called after the event that freed a block. Returns true if another stream still uses the block."""
        until = max((self._timeline.arrival(stream) for stream in self._users.pop(block, ())), default=0.0)
        if until > self._timeline.host:
            self._waiting.append((until, block, self._builder.num_events - 1))
            return True
        return False

    def collect(self, until: float) -> None:
        """Called before a request: returns the blocks whose streams have finished by ``until``, as of the last event."""
        last_event = self._builder.num_events - 1
        for when, block, freed_at in self._waiting:
            if when <= until and last_event > freed_at:
                self._builder.came_back(block, last_event - freed_at)
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > until]

    def still_out(self) -> Returns:
        """The blocks that have not been returned, as if they were with the last event."""
        last_event = self._builder.num_events - 1
        rows = [(block, last_event - freed_at) for _, block, freed_at in self._waiting if last_event > freed_at]
        return Returns.from_rows([value for row in rows for value in row])


class ClockObserver:
    """Advances the clock after each operator."""

    def __init__(self, clock: OperatorClock) -> None:
        self._clock = clock

    def handler(self, func: Any, write_outputs: OutputHandler | None, blocks: BlockWriter) -> OutputHandler | None:
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
    """The times of everything that ran until now, the end of the last step."""
    timeline, chip = clock.timeline, clock.chip
    marks = (*timeline.steps, timeline.now())
    return RunTime(
        spans=timeline.spans(),
        costs=tuple(clock.costs),
        steps=tuple(replace(mark, span=max(mark.span - timeline.num_dropped, 0)) for mark in marks),
        basis=basis_of(chip),
        gap_seconds=clock.pace.gap,
        host_days=clock.rates.host.days,
        interconnect=clock.links.name,
        peak_flops={kind: chip.product_flops(kind) for kind in ("bf16", "f16", "f32", "f8", "f64")} | {"tf32": chip.tf32_flops},
    )
