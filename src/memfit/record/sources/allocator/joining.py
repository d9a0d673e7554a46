"""Marks and entries become a ledger.

::

    Window ── trace of each device ──┐
           ├─ marks ─────────────────┼──> in the order in which it all happened ──> LedgerBuilder
           ├─ facts ─────────────────┘
           └─ what was there before, where windows do not follow each other

Each entry carries the number of the last mark before it, so the order is exact: first the marks up to it, then the entry. An
allocation is born in the scope that is open then; a fact finds the block that is at its address then.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import torch

import memfit
from memfit.allocator import AllocatorSettings
from memfit.allocator.sources.entries import ALLOC, FREE_COMPLETED, FREE_REQUESTED, OOM, SEGMENT_ALLOC, SEGMENT_FREE
from memfit.ledger import INIT, Category, LedgerBuilder, Phase
from memfit.ledger.schema import Array
from memfit.record.module_calls import ModuleCalls
from memfit.record.position import RunPosition
from memfit.record.sources.allocator.backward_plans import BackwardPlans
from memfit.record.sources.allocator.extents import Extents, KeptBlocks, workspace_sizes
from memfit.record.sources.allocator.facts import Fact
from memfit.record.sources.allocator.marks import MODULE_BITS, MarkKind
from memfit.record.sources.allocator.traces import Stack, State, Trace

UNKNOWN_OP: Final = "not known"
"""The history does not say which operator asked."""
BEFORE: Final = "before the recording"
NOT_KEPT: Final = "in a step that was not kept"

LASTING: Final = frozenset(
    (Category.PARAMETER, Category.SHARDED_PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE, Category.WORKSPACE)
)
"""A block of such a role that is at its place after a gap is the same block."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Window:
    """What happened between two readings."""

    traces: Sequence[Trace]
    marks: Array
    """A row for each: kind, value, time, sequence number."""
    first_mark: int
    """The number of the first of them."""
    facts: Sequence[Collection[Fact]]
    """What a mark of the kind ``LEARN`` points into."""
    before: Sequence[State] = field(default_factory=list)
    """What devices held when it began."""
    peak_bytes: int = 0
    """The highest that the main device was in it, as its allocator counted."""

    @property
    def num_bytes(self) -> int:
        """About what it takes to keep, here and in a file."""
        rows = sum(41 * len(trace) + 200 * len(trace.stacks) for trace in self.traces) + 32 * len(self.marks)
        return rows + 100 * sum(map(len, self.facts)) + 200 * sum(len(state.blocks) for state in self.before)


_LIBRARIES: Final = tuple(os.path.dirname(str(package.__file__)) + os.sep for package in (memfit, torch))
"""Where their code is; a program may lie in a folder of the same name."""


class Clock:
    """The time of what is being written down, which was earlier."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def move_to(self, time_ns: int) -> None:
        """Never back: a ledger's events are in order, and two clocks differ by a microsecond."""
        self.now_ns = max(self.now_ns, time_ns)


class _Live:
    """A block that is there."""

    __slots__ = ("block", "is_there", "op", "roles", "scope", "size", "step")

    def __init__(self, block: int, scope: int, size: int, op: int, step: int) -> None:
        self.block, self.scope, self.size, self.op, self.step = block, scope, size, op, step
        self.roles: set[tuple[Category, str | None]] = set()
        self.is_there = True


@dataclass(frozen=True)
class Oom:
    """The allocator could not serve a request."""

    time_ns: int
    """On the clock of the history."""
    device: int
    asked: int
    device_free: int
    scope: int


class Survivor(NamedTuple):
    """Blocks of one place in the program that outlived their step."""

    phase: Phase | None
    module: int
    op: str
    num_bytes: int
    num_blocks: int


class Joiner:
    """Writes windows to a builder, one after the other."""

    def __init__(
        self,
        builder: LedgerBuilder,
        clock: Clock,
        settings: AllocatorSettings,
        device_name: Callable[[int], str],
        module_name: Callable[[int], Hashable],
    ) -> None:
        self._builder, self._clock, self._settings = builder, clock, settings
        self._device_name, self._module_name = device_name, module_name
        self._live: dict[int, _Live] = {}
        self._extents: dict[int, Extents] = {}
        self._pending: dict[int, tuple[int, int]] = {}
        """By address: blocks that were freed and whose memory has not come back, and the number of events by then."""
        self._devices: dict[int, int] = {}
        self._ops: dict[Stack, int] = {}
        self._no_op = -1
        self._workspaces = workspace_sizes()
        self._kept_by_cublas: KeptBlocks[_Live] = KeptBlocks()
        self.ddp_modules: set[int] = set()
        """Modules that DDP wraps: what stays of its own work before their forward are its buckets."""
        self._ddp_scope = -2
        self._buckets: list[_Live] = []
        """Blocks that are DDP's buckets if they outlive the step."""
        self.num_unknown_frees = 0
        """Frees of blocks that were never seen: something is missing from the history."""
        self.oom: Oom | None = None
        """The last time that memory ran out."""
        self._is_first, self._step = True, INIT
        self.plans = BackwardPlans()
        self._sequence_nr = 0
        """The number of the next autograd node when the last mark was written."""
        # Marks do not say in which thread they were written. Sequence numbers are a thread's own, and on a GPU a pass has one.
        calls = ModuleCalls(lambda: len(self._position.passes), lambda: self._sequence_nr)
        self._position = RunPosition(builder, calls=calls)
        self._reset_position()

    @property
    def is_exact(self) -> bool:
        """Is it known of every block how much the allocator gave for it?"""
        return all(extents.is_exact for extents in self._extents.values())

    def add(self, window: Window, *, follows: bool) -> None:
        """Writes down a window. ``follows``: it begins where the one before ended."""
        if not follows:
            self._begin_with(window)
        marks = window.marks.tolist()
        done, num_marks, first = 0, len(marks), window.first_mark
        self.plans.look_ahead(window.marks, first, window.traces)
        for trace, index in _in_order(window.traces):
            columns = (trace.action, trace.address, trace.size, trace.stream, trace.time_ns, trace.mark)
            rows = zip(index.tolist(), *(column[index].tolist() for column in columns), strict=True)
            apply = self._entry_writer(trace)
            for i, action, address, size, stream, time_ns, mark in rows:
                while done < num_marks and first + done <= mark:
                    self._apply_mark(marks[done], first + done, window)
                    done += 1
                self._clock.move_to(time_ns)
                apply(i, action, address, size, stream)
        for number, row in enumerate(marks[done:], start=first + done):
            self._apply_mark(row, number, window)

    def end(self) -> None:
        """Closes the scopes that are open."""
        self._reset_position()

    # -- entries ---------------------------------------------------------------------------------------------------------------

    def _entry_writer(self, trace: Trace) -> Callable[[int, int, int, int, int], None]:
        """Writes an entry of a trace, given its index, action, address, size and stream."""
        builder, live, position, pending = self._builder, self._live, self._position, self._pending
        scopes = position.scopes
        number, extents = self._device(trace.device), self._extents_of(trace.device)
        device, stacks = builder.devices[number], trace.stacks
        granularity = device.granularity if device.is_cuda else 0

        def apply(i: int, action: int, address: int, size: int, stream: int) -> None:
            if action == ALLOC:
                if position.passes:
                    self._follow_plan()
                scope, op = scopes.top, self._op(stacks.get(i))
                block = builder.alloc(size, number, op, scope, stream)
                given = extents.give(address, size)
                if granularity and (more := given + -size // granularity * granularity) > 0:
                    builder.give_more(block, more)
                held = live[address] = _Live(block, scope, size, op, self._step)
                if size in self._workspaces:
                    self._kept_by_cublas.add(held, size, stream, is_backward=bool(position.passes))
                elif scope == self._ddp_scope:
                    self._buckets.append(held)
            elif action == FREE_REQUESTED:
                freed = live.pop(address, None)
                if freed is None:
                    self.num_unknown_frees += 1
                else:
                    freed.is_there = False
                    builder.free(freed.block)
                    pending[address] = freed.block, builder.num_events
            elif action == FREE_COMPLETED:
                extents.take_back(address)
                block, num_events = pending.pop(address, (-1, 0))
                if block >= 0 and builder.num_events > num_events:
                    builder.came_back(block, builder.num_events - num_events)
            elif action == SEGMENT_ALLOC:
                extents.add_segment(address, size)
            elif action == SEGMENT_FREE:
                extents.remove_segment(address)
            elif action == OOM:
                self.oom = Oom(self._clock.now_ns, trace.device, size, address, scopes.top)

        return apply

    def _device(self, index: int) -> int:
        if index not in self._devices:
            self._devices[index] = self._builder.device(self._device_name(index))
        return self._devices[index]

    def _extents_of(self, index: int) -> Extents:
        if index not in self._extents:
            self._extents[index] = Extents(self._settings)
        return self._extents[index]

    def _op(self, stack: Stack | None) -> int:
        if not stack:
            if self._no_op < 0:
                self._no_op = self._builder.string(UNKNOWN_OP)
            return self._no_op
        number = self._ops.get(stack)
        if number is None:
            number = self._ops[stack] = self._builder.string(describe_stack(stack))
        return number

    # -- where windows do not follow each other --------------------------------------------------------------------------------

    def _begin_with(self, window: Window) -> None:
        """Brings what is known in line with what was there when the window began."""
        self._reset_position()
        self._pending.clear()
        if len(window.marks):
            self._clock.move_to(int(window.marks[0, 2]))
        there = {address: (state.device, held) for state in window.before for address, held in state.blocks.items()}
        for address, known in list(self._live.items()):
            is_same = address in there and there[address][1].requested == known.size
            if not is_same or not LASTING & {role for role, _ in known.roles}:
                self._builder.free(known.block)
                del self._live[address]
        builder = self._builder
        op = builder.string(BEFORE if self._is_first else NOT_KEPT)
        for address, (device, held) in there.items():
            if address in self._live:
                continue
            number = self._device(device)
            if self._is_first:
                block = builder.alloc_before(held.requested, number, op, held.stream)
            else:
                block = builder.alloc(held.requested, number, op, -1, held.stream)
            granularity = builder.devices[number].granularity
            more = held.given + -held.requested // granularity * granularity
            if held.given >= 0 and granularity > 1 and more > 0:
                builder.give_more(block, more)
            self._live[address] = _Live(block, -1, held.requested, op, INIT)
        self._extents = {state.device: Extents(self._settings, state) for state in window.before}
        self._is_first = False

    # -- marks -----------------------------------------------------------------------------------------------------------------

    def _reset_position(self) -> None:
        """Outside of everything."""
        self._position.close()
        self._position.calls.forget_all()
        self.plans.begin_anew()
        self._tasks: list[int] = []
        """Engines' tasks that are open, the innermost last."""
        self._buckets = []

    def _apply_mark(self, row: list[int], number: int, window: Window) -> None:
        kind, value, time_ns, self._sequence_nr = row
        position = self._position
        self._clock.move_to(time_ns)
        if kind == MarkKind.ENTER:
            self._enter(value)
        elif kind == MarkKind.EXIT:
            position.exit_module(value)
        elif kind == MarkKind.NODE:
            if position.passes and not position.pinned:
                position.passes[-1].move_to(value)
                self.plans.note_move(position.calls.table(len(position.passes) - 1).place_of(value))
        elif kind == MarkKind.BACKWARD:
            depth = len(position.passes)
            position.begin_pass(depth, position.calls.table(depth))
            self.plans.begin_pass(number, is_told=bool(value), is_inner=depth > 0)
        elif kind == MarkKind.BACKWARD_ENDS:
            if position.passes:
                position.calls.forget(len(position.passes))
                position.leave_pass()
                if not position.passes:
                    self.plans.end_pass(position.calls.table(0).count)
        elif kind == MarkKind.OPTIMIZER:
            position.enter_optimizer(value)
        elif kind == MarkKind.OPTIMIZER_ENDS:
            position.exit_optimizer(value)
        elif kind == MarkKind.PHASE:
            module = (value & (1 << MODULE_BITS) - 1) - 1
            self._tasks.append(position.enter_pinned(Phase(value >> MODULE_BITS), module))
        elif kind == MarkKind.PHASE_ENDS:
            if self._tasks:
                position.exit_pinned(self._tasks.pop())
        elif kind == MarkKind.STEP:
            self._begin_step(value)
        elif kind == MarkKind.LEARN:
            for fact in window.facts[value]:
                self._learn(fact)
        elif kind == MarkKind.EMPTY_CACHE:
            for number in self._devices.values():
                self._builder.empty_cache(number)

    def _follow_plan(self) -> None:
        """Something is about to be allocated in backward: moves to where an earlier pass of the same kind was then."""
        place, position = self.plans.place_of_next(), self._position
        if place is not None and not position.pinned:
            position.passes[0].move_to(position.calls.table(0).number_at(place))

    def _enter(self, module: int) -> None:
        position = self._position
        if not position.passes:
            self.plans.note_forward(self._module_name(module))
        is_root = not position.scopes.depth
        scope = position.enter_module(module, module)
        if is_root and module in self.ddp_modules:
            self._ddp_scope = scope

    def _begin_step(self, number: int) -> None:
        kept = (
            (known, Category.WORKSPACE) for known in self._kept_by_cublas.take(lambda known: known.is_there and not known.roles)
        )
        for known, role in (*kept, *((known, Category.ALL_REDUCE) for known in self._buckets)):
            if known.is_there and not known.roles:
                self._write_role(known, role, -1, None)
        self._buckets = []
        self._step = self._builder.num_steps = number
        self._builder.step()

    # -- what stays ------------------------------------------------------------------------------------------------------------

    def survivors(self, first_step: int, last_step: int) -> list[Survivor]:
        """The blocks that were born in these steps, are still there, and are of no role that explains it."""
        found: dict[tuple[int, int], list[int]] = {}
        for known in self._live.values():
            if first_step <= known.step <= last_step and not LASTING & {role for role, _ in known.roles}:
                found.setdefault((known.scope, known.op), []).append(known.size)
        grouped: dict[tuple[Phase | None, int, str], list[int]] = {}
        for (scope, op), sizes in found.items():
            phase, module = self._builder.scope_at(scope)
            grouped.setdefault((phase, module, self._builder.strings[op]), []).extend(sizes)
        survivors = [Survivor(phase, module, op, sum(sizes), len(sizes)) for (phase, module, op), sizes in grouped.items()]
        return sorted(survivors, key=lambda survivor: -survivor.num_bytes)

    # -- facts -----------------------------------------------------------------------------------------------------------------

    def _learn(self, fact: Fact) -> None:
        if fact.role is Category.ALL_REDUCE:
            self._find_bucket(fact.size)
            return
        known = self._live.get(fact.address)
        if known is None or (fact.role is Category.INPUT and known.scope != -1):
            return
        # A tied weight is one block with two names; a flat parameter is one block with the names of none of its parts.
        is_second = any(role is fact.role for role, _ in known.roles)
        if (fact.role, fact.name) not in known.roles and (not is_second or (fact.is_whole and fact.name is not None)):
            self._write_role(known, fact.role, fact.module, fact.name)

    def _write_role(self, known: _Live, role: Category, module: int, name: str | None) -> None:
        known.roles.add((role, name))
        self._builder.role(known.block, role, module, name)

    def _find_bucket(self, size: int) -> None:
        """DDP's buckets are tensors in C++: blocks of exactly their sizes that have no other role."""
        for known in self._live.values():
            if known.size == size and not known.roles:
                self._write_role(known, Category.ALL_REDUCE, -1, None)
                return


def _in_order(found: Sequence[Trace]) -> list[tuple[Trace, Array]]:
    """Each trace with the entries that come next: all of them at once where there is one device."""
    filled = [trace for trace in found if len(trace)]
    if len(filled) < 2:
        return [(trace, np.arange(len(trace))) for trace in filled]
    mark = np.concatenate([trace.mark for trace in filled])
    time_ns = np.concatenate([trace.time_ns for trace in filled])
    which = np.repeat(np.arange(len(filled)), [len(trace) for trace in filled])
    entry = np.concatenate([np.arange(len(trace)) for trace in filled])
    order = np.lexsort((time_ns, mark))
    which, entry = which[order], entry[order]
    cuts = np.flatnonzero(np.diff(which)) + 1
    return [(filled[int(group[0])], part) for group, part in zip(np.split(which, cuts), np.split(entry, cuts), strict=True)]


def describe_stack(stack: Stack) -> str:
    """The innermost line that is the program's own, and the torch function that it called."""
    own = next((frame for frame in stack if not _is_library(frame.file)), stack[0])
    return f"{os.path.basename(own.file)}:{own.line} in {own.function}"


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or "site-packages" in file or "<" in file
