"""What runs at each moment: a stack of open scopes.

Forward scopes follow module calls. Backward needs no hooks at all: every autograd node carries the sequence number it was made with,
and the numbers at a module's entry and exit bracket the nodes of its forward. So the node that runs tells whose backward it is, and
scopes open and close as it moves from one module to the next.
"""

from __future__ import annotations

from bisect import bisect_right

from memfit.ledger import LedgerBuilder, Phase

Call = tuple[int, int]
"""A module's call: its forward scope and its module number."""
Chain = tuple[Call, ...]
"""The calls around a moment of forward, outermost first."""

KEPT_BOUNDARIES = 100_000
"""How far back in forward a backward can be placed, in module boundaries; bounds memory over long runs."""


class SequenceTable:
    """For one thread: which module calls were open when an autograd node was made."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._chains: list[Chain] = []

    def note(self, sequence_nr: int, chain: Chain) -> None:
        """From this number on, nodes belong to ``chain``."""
        if self._starts and self._starts[-1] == sequence_nr:
            self._chains[-1] = chain
            return
        self._starts.append(sequence_nr)
        self._chains.append(chain)
        if len(self._starts) > 2 * KEPT_BOUNDARIES:
            del self._starts[:KEPT_BOUNDARIES]
            del self._chains[:KEPT_BOUNDARIES]

    def find(self, sequence_nr: int) -> Chain:
        index = bisect_right(self._starts, sequence_nr) - 1
        return self._chains[index] if index >= 0 else ()


class ScopeStack:
    """The open scopes, innermost last, written to the ledger as they open and close."""

    def __init__(self, builder: LedgerBuilder) -> None:
        self._builder = builder
        self._open: list[int] = []
        self.top = -1

    @property
    def depth(self) -> int:
        return len(self._open)

    def push(self, phase: Phase, module: int = -1, size: int = 0) -> int:
        self.top = self._builder.enter(phase, module, self.top, size)
        self._open.append(self.top)
        return self.top

    def pop_to(self, depth: int, size: int = 0) -> None:
        """Closes scopes until ``depth`` are open; ``size`` is what the last of them gave back."""
        while len(self._open) > depth:
            scope = self._open.pop()
            self._builder.exit(scope, size if len(self._open) == depth else 0)
        self.top = self._open[-1] if self._open else -1


class BackwardPass:
    """One pass of the autograd engine, and the modules whose nodes it is running."""

    def __init__(self, task: int, scopes: ScopeStack, table: SequenceTable | None, outer_pinned: int) -> None:
        self.task = task
        self.outer_pinned = outer_pinned
        self._scopes = scopes
        self._table = table or SequenceTable()
        self._chain: Chain = ()
        self._sequence_nr = -1
        self.outer_depth = scopes.depth
        scopes.push(Phase.BACKWARD)

    def move_to(self, sequence_nr: int) -> None:
        """The engine now runs the node with this number: close and open module scopes accordingly."""
        if sequence_nr == self._sequence_nr:
            return
        self._sequence_nr = sequence_nr
        chain = self._table.find(sequence_nr)
        if chain == self._chain:
            return
        shared = 0
        for old, new in zip(self._chain, chain, strict=False):
            if old != new:
                break
            shared += 1
        self._scopes.pop_to(self.outer_depth + 1 + shared)
        for _, module in chain[shared:]:
            self._scopes.push(Phase.BACKWARD, module)
        self._chain = chain
