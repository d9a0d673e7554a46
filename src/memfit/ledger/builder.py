"""Appending to a ledger.

The recorder calls this a few times per operator of a training run, so each call does one list extension and nothing else. Rows are
flat lists of ints, turned into columns when they are flushed or read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np

from memfit.ledger.journal import Journal
from memfit.ledger.ledger import Ledger
from memfit.ledger.run_info import RunInfo
from memfit.ledger.schema import (
    TABLES,
    Activity,
    ActivityKind,
    Blocks,
    Category,
    Device,
    EventKind,
    Events,
    Levels,
    Modules,
    Phase,
    Returns,
    Roles,
    Scopes,
    Slack,
    Table,
)

_ALLOC, _FREE, _RESIZE = int(EventKind.ALLOC), int(EventKind.FREE), int(EventKind.RESIZE)
_ENTER, _EXIT, _STEP = int(EventKind.ENTER), int(EventKind.EXIT), int(EventKind.STEP)
_STREAM, _EMPTY_CACHE = int(EventKind.STREAM), int(EventKind.EMPTY_CACHE)

FLUSH_EVENTS = 50_000
FLUSH_NS = 1_000_000_000


_T = TypeVar("_T", bound=Table)


HOLD_SECONDS = 0.5
"""How long a fork waits for a running flush."""


class LedgerBuilder:
    """Collects events; ``build`` returns the ledger of everything so far, at any time.

    With a journal, a process that dies leaves a readable file up to the last flush. ``clock`` gives the time of each event; where
    events are written down later than they happened, it gives the time at which they did.
    """

    def __init__(
        self, info: RunInfo | None = None, journal: Journal | None = None, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.info = info or RunInfo()
        self.devices: list[Device] = []
        self.strings: list[str] = []
        self._string_ids: dict[str, int] = {}
        self._rows: dict[type[Table], list[int]] = {table: [] for table in TABLES}
        self._prelude: list[int] = []
        self._done: dict[str, list[Any]] = {name: [] for name in (*(table.NAME for table in TABLES), "prelude")}
        self._events = self._rows[Events]
        self._blocks = self._rows[Blocks]
        self._scopes = self._rows[Scopes]
        self._open: list[int] = []
        self._num_misplaced = 0
        self.num_blocks = self.num_scopes = self.num_modules = self.num_steps = self._num_events_done = 0
        self._start_ns = clock()
        self._clock = clock
        self._journal = journal
        self._flushing = threading.Lock()
        self._flushed_ns = self._start_ns
        self._flushed_strings = self._flushed_devices = 0

    # -- words ---------------------------------------------------------------------------------------------------------------

    def string(self, text: str) -> int:
        """The number of a string, added if it is new."""
        known = self._string_ids.get(text)
        if known is None:
            known = self._string_ids[text] = len(self.strings)
            self.strings.append(text)
        return known

    def device(self, name: str) -> int:
        """The number of the device with this name, added if it is new."""
        for number, device in enumerate(self.devices):
            if device.name == name:
                return number
        self.devices.append(Device.from_name(name))
        return len(self.devices) - 1

    def module(self, path: str, kind: str, parent: int = -1, written: str = "") -> int:
        """Adds a module path and returns its number. The caller keeps the number: paths are not looked up. ``written`` says where
        its class is, as in ``RunInfo.sources``."""
        if written and kind not in self.info.sources:
            self.info = replace(self.info, sources=self.info.sources | {kind: written})
        self._rows[Modules] += (self.string(path), self.string(kind), parent)
        self.num_modules += 1
        return self.num_modules - 1

    # -- events --------------------------------------------------------------------------------------------------------------

    def alloc(self, size: int, device: int, op: int, scope: int = -1, stream: int = 0) -> int:
        """Records an allocation; returns the block's number."""
        block = self.num_blocks
        self.num_blocks = block + 1
        self._blocks += (device, stream, op, scope)
        self._events += (_ALLOC, block, size, self._clock() - self._start_ns)
        return block

    def alloc_before(self, size: int, device: int, op: int, stream: int = 0) -> int:
        """Records a block that existed before the recording began, whenever it was found; returns its number."""
        block = self.num_blocks
        self.num_blocks = block + 1
        self._blocks += (device, stream, op, -1)
        self._prelude += (_ALLOC, block, size, 0)
        return block

    def free(self, block: int) -> None:
        self._events += (_FREE, block, 0, self._clock() - self._start_ns)

    def resize(self, block: int, size: int) -> None:
        self._events += (_RESIZE, block, size, self._clock() - self._start_ns)

    def move(self, block: int, stream: int) -> None:
        """Records that the block's next memory, when it is resized, comes from another stream."""
        self._events += (_STREAM, block, stream, self._clock() - self._start_ns)

    def empty_cache(self, device: int) -> None:
        self._events += (_EMPTY_CACHE, device, 0, self._clock() - self._start_ns)

    def enter(self, phase: Phase | int, module: int = -1, parent: int = -1, size: int = 0) -> int:
        """Opens a scope; returns its number. A ``parent`` that has ended counts as none."""
        if parent != -1 and (not self._open or parent != self._open[-1]) and parent not in self._open:
            parent = -1
            self._num_misplaced += 1
        scope = self.num_scopes
        self.num_scopes = scope + 1
        self._scopes += (int(phase), module, parent)
        self._open.append(scope)
        self._events += (_ENTER, scope, size, self._clock() - self._start_ns)
        return scope

    def exit(self, scope: int, size: int = 0) -> None:
        """Ends a scope, and the scopes inside it that never ended. Does nothing if it has already ended."""
        if not self._open or self._open[-1] != scope:
            if scope not in self._open:
                self._num_misplaced += 1
                return
            while self._open[-1] != scope:
                self._num_misplaced += 1
                self._leave(self._open.pop(), 0)
        self._leave(self._open.pop(), size)

    def _leave(self, scope: int, size: int) -> None:
        self._events += (_EXIT, scope, size, self._clock() - self._start_ns)

    def step(self, number: int | None = None) -> None:
        """Starts a training step: the one with this number, by default the next."""
        self.num_steps = self.num_steps if number is None else number
        self._events += (_STEP, self.num_steps, 0, self._clock() - self._start_ns)
        self.num_steps += 1

    def role(self, block: int, role: Category, module: int = -1, name: str | None = None) -> None:
        """Records a role of a block."""
        self._rows[Roles] += (block, int(role), module, -1 if name is None else self.string(name))

    def give_more(self, block: int, size: int) -> None:
        """Records what the allocator gave on top of the block's rounded size. Called at most once, right after ``alloc``."""
        self._rows[Slack] += (block, size)

    def came_back(self, block: int, events_later: int) -> None:
        """Records that a block's memory came back to its allocator that many events after it was freed."""
        self._rows[Returns] += (block, events_later)

    def append(self, events: Events, blocks: Blocks, scopes: Scopes, roles: Roles) -> None:
        """Rows that are columns already, about blocks and scopes whose numbers follow those there are; ``time_ns`` since the
        recording began. They nest with what was around them where they come from; where that is not what is open, they are made
        to nest with that."""
        if not self._nest_with_open(events, scopes):
            events, scopes = self._made_to_nest(events, scopes)
        with self._flushing:
            self._flush()
            for part in (events, blocks, scopes, roles):
                if len(part):
                    self._done[part.NAME].append(part)
            self._num_events_done += len(events)
            self.num_blocks += len(blocks)
            self.num_scopes += len(scopes)
            entered, left = (events.subject[events.kind == kind] for kind in (_ENTER, _EXIT))
            if self._open or len(entered) != len(left):
                over = set(left.tolist())
                self._open = [scope for scope in (*self._open, *entered.tolist()) if scope not in over]

    def _nest_with_open(self, events: Events, scopes: Scopes) -> bool:
        """True if what is around these scopes is open, and the open ones that end here are the innermost."""
        around = scopes.parent[(scopes.parent >= 0) & (scopes.parent < self.num_scopes)]
        ended = events.subject[(events.kind == _EXIT) & (events.subject < self.num_scopes)].tolist()
        return set(around.tolist()) <= set(self._open) and ended == self._open[: -len(ended) - 1 : -1]

    def _made_to_nest(self, events: Events, scopes: Scopes) -> tuple[Events, Scopes]:
        """As ``enter`` and ``exit`` would write them."""
        opened, parents, first = list(self._open), scopes.parent.copy(), self.num_scopes
        row_of: list[int] = []
        subjects: list[int] = []

        def write(row: int, subject: int) -> None:
            row_of.append(row)
            subjects.append(subject)

        for row, (kind, subject) in enumerate(zip(events.kind.tolist(), events.subject.tolist(), strict=True)):
            if kind == _ENTER:
                if parents[subject - first] != -1 and parents[subject - first] not in opened:
                    parents[subject - first] = -1
                    self._num_misplaced += 1
                opened.append(subject)
            elif kind == _EXIT:
                if subject not in opened:
                    self._num_misplaced += 1
                    continue
                while opened[-1] != subject:
                    self._num_misplaced += 1
                    write(row, opened.pop())
                opened.pop()
            write(row, subject)
        columns = {name: column[row_of] for name, column in events.columns().items()}
        return Events(**columns | {"subject": np.array(subjects, dtype=np.int64)}), replace(scopes, parent=parents)

    @property
    def num_events(self) -> int:
        """Number of events, without the blocks that existed before the recording."""
        return self._num_events_done + len(self._events) // len(Events.dtypes())

    def level(self, row: Levels) -> None:
        """Records how full devices were at the end of some steps."""
        self._rows[Levels] += np.stack([column.astype(np.int64) for column in row.columns().values()], axis=1).ravel().tolist()

    def act(self, kind: ActivityKind, number: int, batch: str = "", *, num_before: int = 0) -> None:
        """Records what the script does from here on, or after ``num_before`` more events."""
        self._rows[Activity] += (self.num_events + num_before, int(kind), number, self.string(batch) if batch else -1)

    def mark_incomplete(self, problem: str) -> None:
        self.info = replace(self.info, problem=problem)

    def scope_at(self, scope: int) -> tuple[Phase | None, int]:
        """The phase and the module of a scope; ``None`` and -1 for scope -1."""
        if scope < 0:
            return None, -1
        with self._flushing:
            for part in self._done[Scopes.NAME]:
                if scope < len(part):
                    return Phase(int(part.phase[scope])), int(part.module[scope])
                scope -= len(part)
            phase, module, _ = self._scopes[3 * scope : 3 * scope + 3]
            return Phase(phase), module

    @contextmanager
    def as_of(self, time_ns: int) -> Iterator[None]:
        """Context manager: events written inside get this time on the ledger's clock."""
        clock, self._clock = self._clock, lambda: self._start_ns + time_ns
        try:
            yield
        finally:
            self._clock = clock

    def elapsed_ns(self) -> int:
        """The time on the ledger's clock."""
        return self._clock() - self._start_ns

    # -- out -----------------------------------------------------------------------------------------------------------------

    def build(self) -> Ledger:
        """The ledger of everything so far."""
        with self._flushing:
            self._flush()
            tables: dict[str, Any] = {table.NAME: table.concatenate(self._done[table.NAME]) for table in TABLES}
            tables["events"] = Events.concatenate([*self._done["prelude"], *self._done["events"]])
            num_before, activity = sum(map(len, self._done["prelude"])), tables["activity"]
            tables["activity"] = replace(activity, event=activity.event + num_before)
            return Ledger(**tables, strings=tuple(self.strings), devices=tuple(self.devices), info=self._info_with_notes())

    def _info_with_notes(self) -> RunInfo:
        if not self._num_misplaced:
            return self.info
        note = (
            f"{self._num_misplaced} calls of modules or phases did not end inside the one around them, and were taken to end with "
            "it: sizes are right, the module or phase of some memory may not be"
        )
        return replace(self.info, assumptions=(*self.info.assumptions, note))

    def mark(self) -> dict[str, int]:
        """The current end of every table, for ``between``."""
        with self._flushing:
            self._flush()
            return {name: len(parts) for name, parts in self._done.items()}

    def between(self, first: dict[str, int], last: dict[str, int]) -> dict[str, Any]:
        """The rows written between two marks, by table name."""
        tables: dict[str, type[Table]] = {table.NAME: table for table in TABLES} | {"prelude": Events}
        return {name: table.concatenate(self._done[name][first[name] : last[name]]) for name, table in tables.items()}

    def fresh_since(self, taken: dict[str, int]) -> dict[str, list[Any]]:
        """The parts of each table that are not yet counted in ``taken``, which is updated."""
        with self._flushing:
            self._flush()
            fresh = {name: parts[taken.get(name, 0) :] for name, parts in self._done.items()}
            taken.update({name: len(parts) for name, parts in self._done.items()})
            return fresh

    def _compact(self) -> dict[str, Table]:
        """Turns the rows so far into columns, in place because the hot path holds the lists. Returns the new parts by table name.

        Another thread may append meanwhile. What is taken is what was there at one moment: events with their blocks and scopes,
        whose rows are appended before them; roles, which are appended after the blocks they are about; modules, which come first.
        """
        events, prelude, roles = self._rows[Events], self._prelude, self._rows[Roles]
        while True:
            num_slack, num_returns = len(self._rows[Slack]), len(self._rows[Returns])
            num_roles, num_prelude, num_events = len(roles), len(prelude), len(events)
            if len(prelude) == num_prelude:  # so it was when the events were counted
                break
        fresh: dict[str, Table] = {}
        taken = self._take(Events, events, num_events, fresh)
        self._num_events_done += len(taken)
        before = self._take(Events, prelude, num_prelude, fresh, "prelude")
        num_blocks = int((taken.kind == _ALLOC).sum()) + len(before)
        self._take(Blocks, self._blocks, num_blocks * len(Blocks.dtypes()), fresh)
        self._take(Scopes, self._scopes, int((taken.kind == _ENTER).sum()) * len(Scopes.dtypes()), fresh)
        self._take(Roles, roles, num_roles, fresh)
        self._take(Slack, self._rows[Slack], num_slack, fresh)
        self._take(Returns, self._rows[Returns], num_returns, fresh)
        self._take(Levels, self._rows[Levels], len(self._rows[Levels]), fresh)
        self._take(Modules, self._rows[Modules], len(self._rows[Modules]), fresh)
        self._take(Activity, self._rows[Activity], len(self._rows[Activity]), fresh)
        return fresh

    def _take(self, table: type[_T], rows: list[int], count: int, fresh: dict[str, Table], name: str = "") -> _T:
        """Moves the first ``count`` numbers out of a list of rows."""
        if not count:
            return table.empty()
        part = table.from_rows(rows[:count])
        del rows[:count]
        self._done[name or table.NAME].append(part)
        fresh[name or table.NAME] = part
        return part

    # -- on disk while the run lasts -----------------------------------------------------------------------------------------

    def flush_if_due(self) -> None:
        """Flushes if the lists are long or the journal is old. Called at quiet moments."""
        if len(self._events) >= FLUSH_EVENTS * 4 or (self._journal and self._clock() - self._flushed_ns > FLUSH_NS):
            self.flush()

    def flush(self) -> None:
        """Flushes rows to columns and the journal. Any thread may call it while others append."""
        with self._flushing:
            self._flush()

    def _flush(self) -> None:
        fresh = self._compact()
        self._flushed_ns = self._clock()
        if self._journal is None:
            return
        num_strings, num_devices = len(self.strings), len(self.devices)
        words = {
            "strings": self.strings[self._flushed_strings : num_strings],
            "devices": [asdict(device) for device in self.devices[self._flushed_devices : num_devices]],
            "info": self.info.to_json(),
        }
        self._journal.append(fresh, words)
        self._flushed_strings, self._flushed_devices = num_strings, num_devices

    @property
    def has_journal(self) -> bool:
        return self._journal is not None

    def take_over(self, journal: Journal) -> None:
        """Switches to this journal and replaces its contents with everything recorded so far."""
        with self._flushing:
            self._compact()
            tables: dict[str, Table] = {}
            for table in TABLES:
                tables[table.NAME] = table.concatenate(self._done[table.NAME])
            tables["prelude"] = Events.concatenate(self._done["prelude"])
            words = {"strings": self.strings, "devices": [asdict(device) for device in self.devices], "info": self.info.to_json()}
            journal.replace(tables, words)
            self._flushed_strings, self._flushed_devices = len(self.strings), len(self.devices)
            self._journal = journal

    def give_away_journal(self) -> Journal | None:
        """Detaches and returns the journal, for another builder to continue."""
        with self._flushing:
            journal, self._journal = self._journal, None
            return journal

    def hold_still(self) -> bool:
        """Blocks flushes until ``go_on``, so that a process forked now has whole tables.

        Returns false, and blocks nothing, if a flush is still running after ``HOLD_SECONDS``.
        """
        return self._flushing.acquire(timeout=HOLD_SECONDS)

    def go_on(self) -> None:
        self._flushing.release()

    def give_up_journal(self) -> None:
        """Abandons the journal's file as it is: it cannot be written, or it belongs to another process."""
        self._flushing = threading.Lock()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def close(self) -> Ledger:
        """Returns the finished ledger. If there was a journal, its file now holds that ledger."""
        self.flush()  # raises where the file is no longer ours to replace
        journal, self._journal = self._journal, None
        try:
            ledger = self.build()
        finally:
            if journal is not None:
                journal.close()
        if journal is not None:
            ledger.save(journal.path)
        return ledger
