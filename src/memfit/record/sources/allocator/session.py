"""A recording from the allocator's history: the second witness.

::

    attach     the history is kept, marks are in place
    ...        the run: C++ for each block, a mark for each module; nothing is summed, nothing is looked up
    a step     the level of the device is noted; what came since is read if it is to be kept, and forgotten if not
    close      the last of it is read, everything is undone

With a ``Retention``, a run may last for weeks: what is kept in full are some steps, each a ``Window`` that stands for itself, and
when they take too much, some are dropped and the ledger is written again from those that remain.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from memfit.allocator import Requests, parse_alloc_conf, requests_from_ledger
from memfit.allocator.sources.entries import ALLOC
from memfit.engines import Engine
from memfit.ledger import INIT, Category, LedgerBuilder, Phase, RunInfo
from memfit.ledger.journal import Journal
from memfit.record import run_hooks
from memfit.record.listener import Listener, warn
from memfit.record.module_names import ModuleNames
from memfit.record.session import RecordingSession, mind_forks
from memfit.record.sources.allocator.alarms import AlarmWatch, StepFigures
from memfit.record.sources.allocator.facts import Addresses, Fact, FactGroups
from memfit.record.sources.allocator.history import MOST_ENTRIES, AllocatorHistory, Figures
from memfit.record.sources.allocator.joining import MODULE_BITS, Clock, Joiner, Window
from memfit.record.sources.allocator.levels import LevelLog
from memfit.record.sources.allocator.marks import NOT_MARKED, MarkKind, Marks
from memfit.record.sources.allocator.retention import NEW_PEAK, Retention
from memfit.record.sources.allocator.traces import State, Trace, read_trace

READ_ENTRIES: Final = 200_000
"""So many entries are left in the history before it is read, where everything is kept."""
FLUSH_NS: Final = 500_000_000
"""How often the journal is brought up to date, between steps."""
READING_SHARE: Final = 0.03
"""Reading for the journal's sake takes at most this share of the time."""
CALIBRATION_STEPS: Final = (2, 4, 6)
"""Steps before which the recording looks back: modules that allocate nothing are not marked from then on; backward is placed as it
was seen, and not by hooks; that works, or it does not."""
STEPS_A_LOOK: Final = 100
"""How often optimizers are asked whether they hold state of frozen parameters."""
OnStep = Callable[[StepFigures], None]


class _Modules:
    """Names are given out while the run goes on, and written to a ledger later, or to several."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, int]] = []

    def module(self, path: str, kind: str, parent: int = -1) -> int:
        self.rows.append((path, kind, parent))
        return len(self.rows) - 1


class HistorySession(Listener, RecordingSession):
    """A recording, from its attachment to its end. It can be attached again, and goes on with the same ledger."""

    def __init__(
        self,
        info: RunInfo,
        journal: Journal | None,
        history: AllocatorHistory,
        retention: Retention | None = None,
        on_step: Sequence[OnStep] = (),
    ) -> None:
        self._history, self._retention, self._on_step = history, retention, tuple(on_step)
        self._settings = parse_alloc_conf(info.alloc_conf, info.versions.get("torch") or torch.__version__)
        self._start_ns = time.time_ns()
        self._modules = _Modules()
        self._num_modules_written = 0
        self._names = ModuleNames(self._modules)
        self._marks = Marks(history.set_note, self._begin_root, self._name)
        self._facts: list[FactGroups] = []
        self._fresh: list[Collection[Fact]] = []
        self._addresses = Addresses(self._names, history.device_type, self._learn)
        self._learned_roots: set[int] = set()
        self._ddp_modules: set[int] = set()
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._step, self._step_is_due, self._gradients_are_due = INIT, True, False
        self._noted_step = INIT
        self.marks_steps = True
        self._levels = LevelLog(retention.level_rows if retention is not None else None)
        self._kept: list[tuple[Window, bool]] = []
        """With a retention: the windows that the ledger is made of, each with whether it follows the one before it."""
        self._waiting: list[tuple[Window, bool]] = []
        """Windows that are not in the ledger yet."""
        self._states: list[State] = []
        """What devices held when the history was last begun; empty where that is not known."""
        self._follows = False
        """Does what comes next follow what was last kept?"""
        self._devices: list[int] = []
        self._at_start: dict[int, Figures] = {}
        self._highest: dict[int, int] = {}
        """By device: the peak of the steps that were kept."""
        self._num_extra = 0
        """So many more steps are to be kept in full."""
        self._read_cost_ns = self._read_ns = self._flushed_ns = 0
        self._alarms = AlarmWatch()
        self._with_stacks = False
        self._missing = 0
        self._begin_ledger(info, journal)
        mind_forks(self)

    # -- a recording's protocol ------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        self._history.start()
        try:
            self._find_devices()
            self._begin_history(read=True)
            run_hooks.attach(self)
            self._marks.install()
        except BaseException:
            self._detach()
            raise
        with self._safely():
            self._addresses.repeat_parameters()
            self._relearn_optimizers()
            self._say_learned()

    def catch_up(self) -> None:
        """A ledger read now is up to date."""
        if self.failed or self.is_given_up:
            return
        with self._safely():
            if self._is_on:
                self._learn_what_is_due()
                self._read(keep=True)
            self._join()
            self._write_levels()

    def close(self) -> None:
        """Undoes everything that ``attach`` did. It never raises: the run is not ours to end."""
        with self._safely():
            if not self.failed:
                self._learn_what_is_due()
                self._read(keep=True)
                self._note_level({device: self._history.figures(device) for device in self._devices}, has_events=True)
        self._detach()
        with self._safely():
            self._join()
            self._joiner.end()
            self._write_levels()
            self._say_what_is_missing()

    def give_up(self) -> None:
        """The child of a fork neither records nor writes; CUDA is not its own either."""
        self.is_given_up = self.failed = True
        self._marks.remove()
        self.builder.give_up_journal()

    def elapsed_ns(self) -> int:
        return time.time_ns() - self._start_ns

    def leave_steps_to_caller(self) -> None:
        self.marks_steps = False

    def mark_step(self) -> None:
        """A training step begins here."""
        with self._safely():
            self._begin_step()

    def adopt(self, subjects: Sequence[Any]) -> None:
        """Makes known what existed before the recording began. Nothing is held on to."""
        for subject in subjects:
            if isinstance(subject, nn.Module):
                self._addresses.learn_model(subject)
                self._learned_roots.add(id(subject))
            elif isinstance(subject, torch.Tensor):
                self._addresses.learn_inputs(subject)
        for subject in subjects:  # only models know the names of parameters
            if isinstance(subject, torch.optim.Optimizer):
                self._optimizers[id(subject)] = weakref.ref(subject)
                self._addresses.learn_optimizer(subject)
        if self._is_on:
            self._say_learned()

    def modules(self) -> Iterator[tuple[nn.Module, int]]:
        return self._names.living()

    def where_it_ran_out(self, error: BaseException) -> tuple[int, str]:
        """When memory ran out, on the ledger's clock, and the operator, which the history does not know."""
        found = self._joiner.oom
        return (self.elapsed_ns() if found is None else found.time_ns - self._start_ns), ""

    def describe_failure(self, error: BaseException) -> str:
        problem = f"the recorder failed and detached: {type(error).__name__}: {error}"
        self.builder.mark_incomplete(problem)
        return problem

    @contextmanager
    def _safely(self) -> Iterator[None]:
        """Whatever goes wrong here ends the recording, never the run."""
        try:
            yield
        except Exception as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self._detach()

    _is_on = False

    def _detach(self) -> None:
        self._marks.remove()
        run_hooks.detach(self)
        if self._is_on:
            self._is_on = False
            try:
                self._history.stop()
            except Exception:  # a device that is gone: the run has worse to tell
                self.failed = True

    # -- what run_hooks.py tells -----------------------------------------------------------------------------------------------

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._addresses.learn_gradients(optimizer)
        self._gradients_are_due = False
        self._say_learned()
        self._marks.write(MarkKind.OPTIMIZER, id(optimizer))

    def exit_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        self._addresses.relearn_optimizer(optimizer)
        self._say_learned()
        self._marks.write(MarkKind.OPTIMIZER_ENDS, id(optimizer))
        self._step_is_due = True

    def enter_task(self, engine: Engine | None, phase: Phase, modules: Any) -> int:
        numbers = [number for module in modules if (number := self._names.number(module)) is not None]
        self._marks.write(MarkKind.PHASE, int(phase) << MODULE_BITS | (numbers[0] + 1 if numbers else 0))
        return 0

    def exit_task(self, depth: int) -> None:
        self._say_learned()
        self._marks.write(MarkKind.PHASE_ENDS)

    def learn_tensor(self, tensor: torch.Tensor, category: Category, module: nn.Module, name: str) -> None:
        self._addresses.learn_tensor(tensor, category, module, name)

    def learn_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor) -> None:
        self._addresses.learn_gradient(gradient, parameter)

    def learn_unit(self, unit: Any, tensors: Sequence[Any], described: Callable[[], Iterable[Any]]) -> None:
        self._addresses.learn_unit(id(unit), tensors, described)

    def learn_shards(self, shards: Callable[[], Iterable[Any]]) -> None:
        """They stay until the optimizer's step, and are looked at there."""

    def learn_gradients_of_unit(self, unit: Any, gradients: Callable[[], Sequence[Any]]) -> None:
        self._addresses.learn_gradients_of_unit(id(unit), gradients())
        self._say_learned()  # the engine is about to free them

    def emptied_cache(self) -> None:
        self._marks.write(MarkKind.EMPTY_CACHE)

    # -- what the marks tell ---------------------------------------------------------------------------------------------------

    def _begin_root(self, module: nn.Module, arguments: Any) -> None:
        """Before the forward of a module that is in no other."""
        if self.failed:
            return
        with self._safely():
            if self._step_is_due and self.marks_steps:
                self._begin_step()
                self._addresses.relearn_parameters()
            if id(module) not in self._learned_roots or self._names.number(module) is None:
                run_hooks.patch_loaded()  # an engine, for one
                self._addresses.learn_model(module)
                self._learned_roots.add(id(module))
                if isinstance(module, nn.parallel.DistributedDataParallel):
                    self._ddp_modules.add(self._names.number(module) or 0)
            self._addresses.learn_inputs(arguments)
            self._gradients_are_due = True
            self._say_learned()

    def _name(self, module: nn.Module) -> int:
        if self.failed:
            return NOT_MARKED
        with self._safely():
            number = self._names.number(module)
            if number is None:
                self._addresses.learn_model(module)
                number = self._names.number(module)
            if number is not None:
                return number
        return NOT_MARKED

    def _learn(self, facts: Collection[Fact]) -> None:
        if facts:
            self._fresh.append(facts)

    def _say_learned(self) -> None:
        if self._fresh:
            self._facts.append(FactGroups(self._fresh))
            self._fresh = []
            self._marks.write(MarkKind.LEARN, len(self._facts) - 1)

    def _learn_what_is_due(self) -> None:
        if self._gradients_are_due:
            self._addresses.learn_gradients()
            self._gradients_are_due = False
        self._say_learned()

    def _relearn_optimizers(self) -> None:
        for optimizer in self._known_optimizers():
            self._addresses.learn_optimizer(optimizer)

    def _known_optimizers(self) -> list[torch.optim.Optimizer]:
        return [optimizer for reference in self._optimizers.values() if (optimizer := reference()) is not None]

    # -- steps -----------------------------------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        """A step is over, or what precedes the first; another one begins."""
        self._step_is_due = False
        self._learn_what_is_due()
        figures = {device: self._history.figures(device) for device in self._devices}
        keep = self._is_to_be_kept(figures)
        if self._retention is not None or self._is_worth_reading(figures):
            self._read(keep=keep, figures=figures)
        self._note_level(figures, has_events=keep)
        self._step += 1
        if self._retention is not None and not self._states and self._retention.wants(self._step):
            self._begin_history(read=True)
        self._marks.forget_nodes()
        self._marks.write(MarkKind.STEP, self._step)
        if self._step in CALIBRATION_STEPS:
            self._use_what_was_learned()
        if self.builder.has_journal and time.time_ns() - self._flushed_ns > FLUSH_NS:
            self.flush()

    def _is_to_be_kept(self, figures: dict[int, Figures]) -> bool:
        if self._retention is None:
            return True
        is_new_peak = any(now.peak > self._highest.get(device, 0) * (1 + NEW_PEAK) for device, now in figures.items())
        if is_new_peak and self._step >= self._retention.first:
            self._num_extra = max(self._num_extra, self._retention.around_peaks + 1)
        wanted = self._step == INIT or self._retention.wants(self._step) or self._num_extra > 0
        self._num_extra = max(0, self._num_extra - 1)
        if wanted:
            self._highest |= {device: max(now.peak, self._highest.get(device, 0)) for device, now in figures.items()}
        return wanted

    def _is_worth_reading(self, figures: dict[int, Figures]) -> bool:
        num_entries = sum(now.num_entries - self._at_start[device].num_entries for device, now in figures.items())
        if num_entries > READ_ENTRIES:
            return True
        since = time.time_ns() - self._read_ns
        return self.builder.has_journal and since > max(2 * FLUSH_NS, self._read_cost_ns / READING_SHARE)

    def _note_level(self, found: dict[int, Figures], *, has_events: bool) -> None:
        now, self._noted_step = self.elapsed_ns(), self._step
        for device, figures in found.items():
            if not figures.reserved:
                continue  # another process's, or not used yet
            largest = next((state.largest_free for state in self._states if state.device == device), -1)
            row = {
                "first_step": self._step,
                "last_step": self._step,
                "device": device,
                "time_ns": now,
                "has_events": int(has_events),
                "peak": figures.peak,
                "allocated": figures.allocated,
                "reserved": figures.reserved,
                "active": figures.active,
                "inactive_split": figures.inactive_split,
                "largest_free": largest,
            }
            self._levels.add(**row)
            told = StepFigures(self._history.device_name(device), self._history.capacity(device), **_without(row, "device"))
            self._look_for_trouble(told)
            for tell in self._on_step:
                try:
                    tell(told)
                except Exception as error:  # a logger's trouble is no reason to end the recording, nor the run
                    self._on_step = tuple(other for other in self._on_step if other is not tell)
                    self.builder.info = replace(
                        self.builder.info, notes=(*self.builder.info.notes, f"{tell!r} failed and is called no more: {error}")
                    )

    def _look_for_trouble(self, figures: StepFigures) -> None:
        """Watches levels; where they grow, some steps are kept in full, with stacks, to see what stays."""
        alarms, found = self._alarms, []
        alarms.note(figures)
        if alarms.is_done(figures.step):
            self._read(keep=True)
            self._join()
            found = alarms.conclude(figures, self._joiner, self._path)
        if alarms.looks_closely:
            self._num_extra = max(self._num_extra, 1)
        if alarms.looks_closely != self._with_stacks:
            self._with_stacks = alarms.looks_closely
            self._read(keep=True)
        found += alarms.fragmentation(
            figures, self._requests, self.builder.info.versions.get("torch", ""), self.builder.info.alloc_conf
        )
        if figures.step % STEPS_A_LOOK == CALIBRATION_STEPS[0]:
            found += alarms.frozen_state(self._addresses.frozen_state(self._known_optimizers()), figures.step)
        if found:
            self.builder.info = replace(self.builder.info, alarms=(*self.builder.info.alarms, *found))
            for alarm in found:
                warn(alarm)

    # -- reading the history ---------------------------------------------------------------------------------------------------

    def _find_devices(self) -> None:
        used = [device for device in range(self._history.num_devices()) if self._history.figures(device).num_requests]
        self._devices = used or ([0] if self._history.num_devices() else [])
        if self._devices and not self.builder.info.capacity_bytes:
            self.builder.info = replace(self.builder.info, capacity_bytes=self._history.capacity(self._devices[0]))

    def _begin_history(self, *, read: bool = False, figures: dict[int, Figures] | None = None) -> None:
        """The history is empty from here on; ``read``: what is there now is looked up, so that what follows is exact."""
        if read:
            reading = self._history.read()
            self._states = [State.of(device, reading.segments) for device in range(len(reading.traces))]
            self._follows = False
            self._history.start(with_stacks=self._with_stacks)
        self._marks.forget()
        self._facts = []
        self._after_start(figures)

    def _after_start(self, figures: dict[int, Figures] | None = None) -> None:
        self._is_on = True
        self._at_start = figures or {device: self._history.figures(device) for device in self._devices}
        self._read_ns = time.time_ns()

    def _read(self, *, keep: bool, figures: dict[int, Figures] | None = None) -> None:
        """Takes what came since the history was last begun, or forgets it, and begins it again."""
        if not keep:
            self._history.start(with_stacks=self._with_stacks)
            self._states, self._follows = [], False
            self._begin_history(figures=figures)
            return
        began = time.perf_counter_ns()
        if not self._follows:
            self._addresses.repeat_parameters()
            self._relearn_optimizers()
            self._say_learned()
        self._find_devices()
        reading = self._history.read()
        self._history.start(with_stacks=self._with_stacks)
        first_mark, marks = self._marks.first, self._marks.take()
        traces = [read_trace(device, entries, marks[:, 2], first_mark) for device, entries in enumerate(reading.traces) if entries]
        states = [State.of(device, reading.segments) for device in range(len(reading.traces))]
        self._count_missing(traces)
        window = Window(
            traces=traces,
            marks=marks,
            first_mark=first_mark,
            facts=self._facts,
            before=self._states or _before(states, traces),
            peak_bytes=max((self._history.figures(device).peak for device in self._devices), default=0),
        )
        self._waiting.append((window, self._follows))
        self._facts, self._states, self._follows = [], states, True
        self._after_start()
        if self._retention is not None or self.builder.has_journal:
            self._join()
            if self._step > CALIBRATION_STEPS[-1]:
                self._place_backward_if_needed()
        self._read_cost_ns = time.perf_counter_ns() - began

    def _count_missing(self, traces: Sequence[Trace]) -> None:
        """Entries that the history did not keep: too many of them, or somebody else began it anew."""
        seen = {trace.device: int((trace.action == ALLOC).sum()) for trace in traces}
        for device in self._devices:
            before = self._at_start.get(device)
            if before is not None:
                self._missing += max(0, self._history.figures(device).num_requests - before.num_requests - seen.get(device, 0))
        if any(len(trace) >= MOST_ENTRIES for trace in traces) or self._missing:
            self._states = []

    # -- the ledger ------------------------------------------------------------------------------------------------------------

    def _begin_ledger(self, info: RunInfo, journal: Journal | None) -> None:
        clock = Clock(self._start_ns)
        self.builder = LedgerBuilder(info, journal, clock)
        self._joiner = Joiner(self.builder, clock, self._settings, self._history.device_name)
        self._num_modules_written = 0

    def _join(self) -> None:
        """Writes what is waiting to the ledger."""
        while self._waiting:
            window, follows = self._waiting.pop(0)
            self._write(window, follows=follows)
            if self._retention is not None:
                self._kept.append((window, follows))
        if self._retention is not None and (self._is_too_much() or self._levels.is_full):
            self._thin_out()
        if self.builder.has_journal:
            self.flush()

    def _write(self, window: Window, *, follows: bool) -> None:
        for row in self._modules.rows[self._num_modules_written :]:
            self.builder.module(*row)
        self._num_modules_written = len(self._modules.rows)
        self._joiner.ddp_modules |= self._ddp_modules
        self._joiner.add(window, follows=follows)

    def _is_too_much(self) -> bool:
        assert self._retention is not None
        return len(self._kept) > 4 and sum(window.num_bytes for window, _ in self._kept) > self._retention.detail_bytes

    def _thin_out(self) -> None:
        """Drops every second of the windows in the middle, and writes the ledger again from the others."""
        assert self._retention is not None
        if self._is_too_much():
            highest = max(range(len(self._kept)), key=lambda i: self._kept[i][0].peak_bytes)
            middle = [i for i in range(1 + self._retention.first, len(self._kept) - 2) if i != highest]
            dropped = set(middle[::2]) or set(range(1, len(self._kept) - 2))
            self._kept = [
                (window, follows and i - 1 not in dropped) for i, (window, follows) in enumerate(self._kept) if i not in dropped
            ]
        if self._levels.is_full:
            self._levels.thin_out()
        journal = self.builder.give_away_journal()
        unknown = self._joiner.num_unknown_frees
        self._begin_ledger(self.builder.info, None)
        for window, follows in self._kept:
            self._write(window, follows=follows)
        self._joiner.num_unknown_frees = unknown
        self._write_all_levels()
        if journal is not None:
            self.builder.take_over(journal)

    def _write_all_levels(self) -> None:
        self._levels.rewind()
        self._write_levels()

    def _write_levels(self) -> None:
        rows = self._levels.take()
        if len(rows):
            numbers = {device: self.builder.device(self._history.device_name(device)) for device in np.unique(rows.device).tolist()}
            self.builder.level(replace(rows, device=np.array([numbers[device] for device in rows.device.tolist()], dtype=np.int32)))

    def flush(self) -> None:
        """Brings the journal up to date."""
        self._write_levels()
        self.builder.flush()
        self._flushed_ns = time.time_ns()
        self.num_steps_on_disk = max(self._noted_step, 0)

    # -- what is said of it ----------------------------------------------------------------------------------------------------

    def _say_what_is_missing(self) -> None:
        info, notes = self.builder.info, list(self.builder.info.notes)
        if self._missing:
            problem = (
                f"the allocator's history lost {self._missing:,} allocations: somebody else began it anew, or a step had too many"
            )
            info = replace(info, problem=info.problem or problem)
        if not self._joiner.is_exact:
            notes.append(
                "what the allocator gave on top of some blocks is not known: they are counted as asked, in units of 512 bytes"
            )
        self.builder.info = replace(info, notes=tuple(dict.fromkeys(notes)))

    def _use_what_was_learned(self) -> None:
        """From now on, no more is marked than is needed."""
        self._read(keep=True)
        self._join()
        if self._step == CALIBRATION_STEPS[0]:
            self._leave_out_quiet_modules()
        else:
            self._place_backward_if_needed()
        if self._step != CALIBRATION_STEPS[-1]:
            self._num_extra = max(self._num_extra, 2)

    def _place_backward_if_needed(self) -> None:
        plans = self._joiner.plans
        self._marks.places_backward = plans.has_inner_passes or plans.num_unplaced > 0

    def _leave_out_quiet_modules(self) -> None:
        """Modules inside of which nothing was allocated need no marks."""
        ledger = self.builder.build()
        called = np.unique(ledger.scopes.module[ledger.scopes.phase == Phase.FORWARD]).tolist()
        busy = {*np.unique(ledger.block_module).tolist(), *(parent for _, _, parent in self._modules.rows)}
        quiet = {module for module in called if module not in busy}
        if quiet:
            self._marks.leave_out(quiet)
            some = ", ".join(sorted(self._modules.rows[module][0] for module in quiet)[:3])
            note = (
                f"calls of {len(quiet)} modules that allocate nothing themselves are not marked from step {self._step} on: {some}"
            )
            note += ", ..." if len(quiet) > 3 else ""
            self.builder.info = replace(self.builder.info, notes=(*self.builder.info.notes, note))

    def _path(self, module: int) -> str:
        return self._modules.rows[module][0] if module >= 0 else ""

    def _requests(self) -> Requests:
        self._join()
        return requests_from_ledger(self.builder.build())


def _before(states: Sequence[State], traces: Sequence[Trace]) -> list[State]:
    by_device = {trace.device: trace for trace in traces}
    return [state.before(by_device[state.device]) if state.device in by_device else state for state in states]


def _without(row: dict[str, int], name: str) -> dict[str, int]:
    return {key: value for key, value in row.items() if key != name}
