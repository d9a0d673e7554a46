"""The open module calls, and the calls that were open when each autograd node was made."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable

from memfit.torch_compat.autograd import next_sequence_nr

Call = tuple[int, int]
"""A module call: its own number and the module's."""
Chain = tuple[Call, ...]
"""The open calls at some point of forward, outermost first."""

KEPT_BOUNDARIES = 100_000
"""Number of module boundaries kept for placing backward nodes; bounds memory over long runs."""


class SequenceTable:
    """For one thread: which module calls were open when an autograd node was made.

    Every autograd node carries the sequence number it was made with, and the numbers at a module's entry and exit bracket the nodes
    of its forward.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._chains: list[Chain] = []
        self._num_dropped = 0

    @property
    def count(self) -> int:
        """Number of boundaries so far."""
        return self._num_dropped + len(self._starts)

    def place_of(self, sequence_nr: int) -> int:
        """The index of the last boundary before a node."""
        return self._num_dropped + bisect_right(self._starts, sequence_nr) - 1

    def number_at(self, place: int) -> int:
        """The sequence number at a boundary, -1 (before all nodes) if it is unknown."""
        index = place - self._num_dropped
        return self._starts[index] if 0 <= index < len(self._starts) else -1

    def note(self, sequence_nr: int, chain: Chain) -> None:
        """Assigns nodes from this number on to ``chain``."""
        if self._starts and self._starts[-1] == sequence_nr:
            self._chains[-1] = chain
            return
        self._starts.append(sequence_nr)
        self._chains.append(chain)
        if len(self._starts) > 2 * KEPT_BOUNDARIES:
            del self._starts[:KEPT_BOUNDARIES]
            del self._chains[:KEPT_BOUNDARIES]
            self._num_dropped += KEPT_BOUNDARIES

    def find(self, sequence_nr: int) -> Chain:
        index = bisect_right(self._starts, sequence_nr) - 1
        return self._chains[index] if index >= 0 else ()


class ModuleCalls:
    """The open module calls. ``mark`` is the caller's own note on a call, handed back when it ends.

    ``this_thread`` and ``next_node`` give the thread that is at work and the sequence number of its next autograd node.
    """

    def __init__(
        self, this_thread: Callable[[], int] = threading.get_ident, next_node: Callable[[], int] = next_sequence_nr
    ) -> None:
        self._this_thread, self._next_node = this_thread, next_node
        self._open: list[tuple[int, int, Chain]] = []
        self._tables: dict[int, SequenceTable] = {}
        self.latest = SequenceTable()
        """The table of the thread in which a module last ran: where the nodes of the next backward were made."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def chain(self) -> Chain:
        return self._open[-1][2] if self._open else ()

    def enter(self, identity: int, call: int, module: int, mark: int) -> None:
        self._open.append((identity, mark, (*self.chain, (call, module))))
        self._note()

    def exit(self, identity: int) -> list[int]:
        """Ends a call and the calls inside it that never ended; returns their marks, innermost first. Empty for an unknown call."""
        marks: list[int] = []
        if any(entry[0] == identity for entry in self._open):
            ended = None
            while ended != identity:
                ended, mark, _ = self._open.pop()
                marks.append(mark)
        self._note()
        return marks

    def clear(self) -> None:
        self._open.clear()

    def table(self, thread: int) -> SequenceTable:
        """The table of a thread's nodes."""
        table = self._tables.get(thread)
        if table is None:
            table = self._tables[thread] = SequenceTable()
        return table

    def forget(self, thread: int) -> None:
        """Forgets a thread's nodes."""
        self._tables.pop(thread, None)

    def forget_all(self) -> None:
        """Forgets the nodes of all threads."""
        self._tables.clear()

    def _note(self) -> None:
        thread = self._this_thread()
        self.latest = self._tables.get(thread) or self.table(thread)
        self.latest.note(self._next_node(), self.chain)
