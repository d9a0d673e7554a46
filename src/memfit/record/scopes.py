"""What runs at each moment: a stack of open scopes.

Forward scopes follow module calls. Backward needs no hooks at all: the autograd node that runs tells, by its sequence number, in
whose forward it was made. Scopes open and close as the engine moves from one module's nodes to the next.
"""

from __future__ import annotations

from memfit.ledger import LedgerBuilder, Phase
from memfit.record.module_calls import Chain, SequenceTable


class ScopeOwner:
    """Which thread's scopes the ledger has: in a ledger, a scope is inside another or beside it, never half of both."""

    def __init__(self) -> None:
        self.stack: ScopeStack | None = None


class ScopeStack:
    """One thread's open scopes, innermost last, written to the ledger as they open and close.

    While another thread has scopes open there, nothing is written, and this thread's blocks are of no scope.
    """

    def __init__(self, builder: LedgerBuilder, owner: ScopeOwner | None = None) -> None:
        self._builder = builder
        self._owner = owner or ScopeOwner()
        self._open: list[int] = []
        self.top = -1

    @property
    def depth(self) -> int:
        return len(self._open)

    def push(self, phase: Phase, module: int = -1, size: int = 0) -> int:
        if not self._open and self._owner.stack is None:
            self._owner.stack = self
        if self._owner.stack is self:
            self.top = self._builder.enter(phase, module, self.top, size)
        self._open.append(self.top)
        return self.top

    def pop_to(self, depth: int, size: int = 0) -> None:
        """Closes scopes until ``depth`` are open; ``size`` is what the last of them gave back."""
        while len(self._open) > depth:
            scope = self._open.pop()
            if scope != -1:
                self._builder.exit(scope, size if len(self._open) == depth else 0)
        self.top = self._open[-1] if self._open else -1
        if not self._open and self._owner.stack is self:
            self._owner.stack = None


class BackwardPass:
    """One pass of the autograd engine, and the modules whose nodes it is running."""

    def __init__(self, task: int, scopes: ScopeStack, table: SequenceTable, outer_pinned: int) -> None:
        self.task = task
        self.outer_pinned = outer_pinned
        self._scopes = scopes
        self._table = table
        self.chain: Chain = ()
        """The module calls whose nodes the engine runs, outermost first."""
        self._sequence_nr = -1
        self.num_nodes = 0
        """How many times the engine has moved from one node to another."""
        self.outer_depth = scopes.depth
        scopes.push(Phase.BACKWARD)

    def move_to(self, sequence_nr: int) -> None:
        """The engine now runs the node with this number: close and open module scopes accordingly."""
        if sequence_nr == self._sequence_nr:
            return
        self._sequence_nr = sequence_nr
        self.num_nodes += 1
        self._move_into(self._table.find(sequence_nr))

    def move_out(self) -> None:
        """What runs from now on is of no known module."""
        self._move_into(())

    def _move_into(self, chain: Chain) -> None:
        if chain == self.chain:
            return
        shared = 0
        for old, new in zip(self.chain, chain, strict=False):
            if old != new:
                break
            shared += 1
        self._scopes.pop_to(self.outer_depth + 1 + shared)
        for _, module in chain[shared:]:
            self._scopes.push(Phase.BACKWARD, module)
        self.chain = chain
