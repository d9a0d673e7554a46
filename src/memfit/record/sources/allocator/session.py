"""A recording from the allocator's history.

::

    attach     the history is kept, marks are in place
    ...        the run: C++ for each block, a mark for each module; nothing is summed, nothing is looked up
    a step     the level of the device is noted; what came since is read if it is to be kept, and forgotten if not
    close      the last of it is read, everything is undone

With a ``Retention``, a run may last for weeks: what is kept in full are some steps, each a ``Window`` that stands for itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from memfit.allocator import Requests, parse_alloc_conf, requests_from_ledger
from memfit.ledger import INIT, LedgerBuilder, RunInfo
from memfit.ledger.journal import Journal
from memfit.record import run_hooks
from memfit.record.listener import warn
from memfit.record.module_names import ModuleNames
from memfit.record.session import RecordingSession, mind_forks
from memfit.record.sources.allocator.alarms import AlarmWatch, StepFigures
from memfit.record.sources.allocator.backward_plans import KNOWN_MODELS
from memfit.record.sources.allocator.follower import RunFollower
from memfit.record.sources.allocator.history import AllocatorHistory, DeviceFigures
from memfit.record.sources.allocator.levels import LevelReporter, OnStep
from memfit.record.sources.allocator.marks import MarkKind
from memfit.record.sources.allocator.reader import HistoryReader
from memfit.record.sources.allocator.retention import Retention, StepKeeper
from memfit.record.sources.allocator.windows import FLUSH_NS, WindowLedger

CALIBRATION_STEPS: Final = (2, 4, 6)
"""Steps before which the recording looks back: modules that allocate nothing are not marked from then on; backward is placed as it
was seen, and not by hooks; that works, or it does not."""
STEPS_A_LOOK: Final = 100
"""How often optimizers are asked whether they hold state of frozen parameters."""


class HistorySession(RecordingSession):
    """Has the run followed, and reads and keeps the history step by step."""

    def __init__(
        self,
        info: RunInfo,
        journal: Journal | None,
        history: AllocatorHistory,
        retention: Retention | None = None,
        on_step: Sequence[OnStep] = (),
    ) -> None:
        settings = parse_alloc_conf(info.alloc_conf, info.versions.get("torch") or torch.__version__)
        self._history, self._retention, self._start_ns = history, retention, time.time_ns()
        self._ledger = WindowLedger(info, journal, self._start_ns, settings, history.device_name, retention)
        self._names = ModuleNames(self._ledger.modules)
        self._follower = RunFollower(history, self._names, self._begin_step, self._give_in)
        self._marks = self._follower.marks
        self._reader = HistoryReader(history, self._marks)
        self._steps = StepKeeper(retention)
        self._levels = LevelReporter(history, self._ledger.levels, on_step)
        self._alarms = AlarmWatch()
        self._step = INIT
        """Counted from 0 where the recording begins."""
        self._number = INIT
        """What the ledger calls the step: the same, unless the caller says otherwise."""
        mind_forks(self)

    @property
    def builder(self) -> LedgerBuilder:
        return self._ledger.builder

    @property
    def num_steps_on_disk(self) -> int:
        return self._ledger.num_steps_on_disk

    # -- a recording's protocol ------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        try:
            self._reader.start()
            self._note_capacity()
            run_hooks.attach(self._follower)
            self._marks.install()
        except BaseException:
            self._detach()
            raise
        with self._safely():
            self._follower.repeat_all()

    def catch_up(self) -> None:
        if self._follower.failed or self.is_given_up:
            return
        with self._safely():
            if self._reader.is_on:
                self._follower.learn_what_is_due()
                self._read()
            self._ledger.write()
            self._ledger.write_levels()

    def close(self) -> None:
        with self._safely():
            if not self._follower.failed:
                self._follower.learn_what_is_due()
                self._read()
                self._note_level(self._reader.figures(), has_events=True)
        self._detach()
        with self._safely():
            self._ledger.write()
            self._remember_models()
            self._ledger.joiner.end()
            self._ledger.write_levels()
            self._say_what_is_missing()

    def give_up(self) -> None:
        """CUDA is not the child's own either."""
        self.is_given_up = self._follower.failed = True
        self._marks.remove()
        self.builder.give_up_journal()

    def elapsed_ns(self) -> int:
        return time.time_ns() - self._start_ns

    def leave_steps_to_caller(self) -> None:
        self._follower.models.marks_steps = False

    def mark_step(self, number: int | None = None) -> None:
        with self._safely():
            self._begin_step(number)

    def adopt(self, subjects: Sequence[Any]) -> None:
        self._follower.adopt(subjects)
        if self._reader.is_on:
            self._marks.write_learned()

    def modules(self) -> Iterator[tuple[nn.Module, int]]:
        return self._names.living()

    def where_it_ran_out(self, error: BaseException) -> tuple[int, str]:
        """The history does not know the operator."""
        found = self._ledger.joiner.oom
        return (self.elapsed_ns() if found is None else found.time_ns - self._start_ns), ""

    def fail(self, error: BaseException) -> None:
        self._follower.fail(error)

    @contextmanager
    def _safely(self) -> Iterator[None]:
        """Whatever goes wrong here ends the recording, never the run."""
        try:
            yield
        except Exception as error:
            self.fail(error)

    def _give_in(self, problem: str) -> None:
        self.builder.mark_incomplete(problem)
        self._detach()

    def _detach(self) -> None:
        self._marks.remove()
        run_hooks.detach(self._follower)
        try:
            self._reader.stop()
        except Exception:  # a device that is gone: the run has worse to tell
            self._follower.failed = True

    # -- steps -----------------------------------------------------------------------------------------------------------------

    def _begin_step(self, number: int | None = None) -> None:
        """A step is over, or what precedes the first; another one begins."""
        self._follower.models.step_is_due = False
        self._follower.learn_what_is_due()
        figures, journal_ns = self._reader.figures(), 2 * FLUSH_NS if self.builder.has_journal else None
        is_kept = self._steps.keeps(self._step, figures)
        if not is_kept:
            self._reader.forget(figures)
        elif self._retention is not None or self._reader.is_worth_reading(figures, journal_ns):
            self._read()
        self._note_level(figures, has_events=is_kept)
        self._step += 1
        self._number = self._step if number is None else number
        if self._retention is not None and not self._reader.is_exact and self._retention.wants(self._step):
            self._reader.start()
        self._marks.forget_nodes()
        self._marks.write(MarkKind.STEP, self._number)
        if self._step in CALIBRATION_STEPS:
            self._calibrate()
        if self._ledger.is_flush_due:
            self._ledger.flush()

    def _read(self) -> None:
        """Takes what came since the history was last begun."""
        began = time.perf_counter_ns()
        if not self._reader.follows:
            self._follower.repeat_all()
        window, follows = self._reader.read()
        self._note_capacity()
        self._ledger.ddp_modules |= self._follower.ddp_modules
        self._ledger.add(window, follows=follows)
        if self._retention is not None or self.builder.has_journal:
            self._ledger.write()
            if self._step > CALIBRATION_STEPS[-1]:
                self._place_backward_if_needed()
        self._reader.cost_ns = time.perf_counter_ns() - began

    def _note_capacity(self) -> None:
        devices, info = self._reader.devices, self.builder.info
        if devices and not info.capacity_bytes:
            self.builder.info = replace(info, capacity_bytes=self._history.capacity(devices[0]))

    def _note_level(self, found: dict[int, DeviceFigures], *, has_events: bool) -> None:
        self._ledger.last_step = max(self._step, 0)
        noted = self._levels.note(self._number, self.elapsed_ns(), found, self._reader.largest_free, has_events=has_events)
        for figures in noted:
            self._look_for_trouble(figures)
            self._ledger.note(*self._levels.tell(figures))

    def _look_for_trouble(self, figures: StepFigures) -> None:
        """Watches levels; where they grow, some steps are kept in full, with stacks, to see what stays."""
        alarms, info, found = self._alarms, self.builder.info, list[str]()
        alarms.note(figures)
        if alarms.is_done(figures.step):
            self._read()
            self._ledger.write()
            found = alarms.conclude(figures, self._ledger.joiner, self._ledger.modules.path)
        if alarms.looks_closely:
            self._steps.keep_more(1)
        if alarms.looks_closely != self._reader.with_stacks:
            self._reader.with_stacks = alarms.looks_closely
            self._read()
        found += alarms.fragmentation(figures, self._requests, info.versions.get("torch", ""), info.alloc_conf)
        if figures.step % STEPS_A_LOOK == CALIBRATION_STEPS[0]:
            found += alarms.frozen_state(self._follower.roles.frozen_state(self._follower.optimizers()), figures.step)
        if found:
            self.builder.info = replace(self.builder.info, alarms=(*self.builder.info.alarms, *found))
            for alarm in found:
                warn(alarm)

    def _requests(self) -> Requests:
        self._ledger.write()
        return requests_from_ledger(self.builder.build())

    # -- what is marked --------------------------------------------------------------------------------------------------------

    def _calibrate(self) -> None:
        """From now on, no more is marked than is needed."""
        if self._follower.is_known_model and self._step != CALIBRATION_STEPS[-1]:
            return
        self._read()
        self._ledger.write()
        if self._step == CALIBRATION_STEPS[0]:
            self._leave_out_quiet_modules()
        else:
            self._place_backward_if_needed()
        if self._step != CALIBRATION_STEPS[-1]:
            self._steps.keep_more(2)

    def _place_backward_if_needed(self) -> None:
        plans = self._ledger.joiner.plans
        self._marks.places_backward = plans.has_inner_passes or plans.num_unplaced > 0

    def _remember_models(self) -> None:
        """The next recording of these models begins where this one ends; not if one of their passes could not be placed."""
        plans, roots = self._ledger.joiner.plans, self._follower.roots()
        if plans.num_unplaced or plans.has_inner_passes:
            KNOWN_MODELS.forget(roots)
        elif plans.num_placed:
            quiet = self._marks.left_out
            KNOWN_MODELS.learn(roots, [module for module, number in self._names.living() if number in quiet])
        if plans.num_unplaced:
            self._ledger.note(f"{plans.num_unplaced} backward passes were unlike those before: what they allocated is of no module")

    def _leave_out_quiet_modules(self) -> None:
        quiet = self._ledger.quiet_modules()
        if quiet:
            self._marks.leave_out(quiet)
            some = ", ".join(sorted(map(self._ledger.modules.path, quiet))[:3]) + (", ..." if len(quiet) > 3 else "")
            self._ledger.note(
                f"calls of {len(quiet)} modules that allocate nothing themselves are not marked from step {self._number} on: {some}"
            )

    def _say_what_is_missing(self) -> None:
        if self._reader.num_missing:
            problem = (
                f"the allocator's history lost {self._reader.num_missing:,} allocations: "
                "somebody else began it anew, or a step had too many"
            )
            self.builder.info = replace(self.builder.info, problem=self.builder.info.problem or problem)
        if not self._ledger.joiner.is_exact:
            self._ledger.note(
                "what the allocator gave on top of some blocks is not known: they are counted as asked, in units of 512 bytes"
            )
