"""The position of a run: the module whose forward or backward runs, the optimizer step, the engine's task.

::

    module calls, optimizer steps, engines' tasks ──┐
    the autograd node that runs ────────────────────┴──> RunPosition ──> scopes that open and close in the ledger

Forward scopes follow module calls. Backward needs no hooks: the node that runs tells, by its sequence number, in whose forward it
was made. Scopes open and close as the engine moves from one module's nodes to the next.
"""

from __future__ import annotations

from collections.abc import Callable

from memfit.ledger import LedgerBuilder, Phase
from memfit.record.module_calls import Chain, ModuleCalls, SequenceTable


class ScopeOwner:
    """The thread whose scopes are written: scopes of a ledger nest, so only one thread's are."""

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
        """Closes scopes until ``depth`` are open; ``size`` is the size of the last one's result."""
        while len(self._open) > depth:
            scope = self._open.pop()
            if scope != -1:
                self._builder.exit(scope, size if len(self._open) == depth else 0)
        self.top = self._open[-1] if self._open else -1
        if not self._open and self._owner.stack is self:
            self._owner.stack = None


OnRoot = Callable[[int], None]
"""Called when backward, but none inside it, moves from one outermost module call to another, with the scope of the one whose nodes
run from now on; -1 where they are of none, and when the pass is over."""


class BackwardPass:
    """One pass of the autograd engine, and the modules whose nodes it is running."""

    def __init__(
        self, task: int, scopes: ScopeStack, table: SequenceTable, outer_pinned: int, on_root: OnRoot | None = None
    ) -> None:
        self.task, self.outer_pinned, self._on_root = task, outer_pinned, on_root
        self._scopes = scopes
        self._table = table
        self.chain: Chain = ()
        """The module calls whose nodes the engine runs, outermost first."""
        self._sequence_nr = -1
        self.num_nodes = 0
        """Number of times the engine has moved to another node."""
        self.outer_depth = scopes.depth
        self.scope = scopes.push(Phase.BACKWARD)

    def move_to(self, sequence_nr: int) -> None:
        """Closes and opens module scopes for the node with this number, which the engine now runs."""
        if sequence_nr == self._sequence_nr:
            return
        self._sequence_nr = sequence_nr
        self.num_nodes += 1
        self._move_into(self._table.find(sequence_nr))

    def move_out(self) -> None:
        """Closes the module scopes: what runs next belongs to no known module."""
        self._move_into(())

    def _move_into(self, chain: Chain) -> None:
        if chain == self.chain:
            return
        if self._on_root is not None and chain[:1] != self.chain[:1]:
            self._on_root(chain[0][0] if chain else -1)
        shared = 0
        for old, new in zip(self.chain, chain, strict=False):
            if old != new:
                break
            shared += 1
        self._scopes.pop_to(self.outer_depth + 1 + shared)
        for _, module in chain[shared:]:
            self._scopes.push(Phase.BACKWARD, module)
        self.chain = chain


class RunPosition:
    """Keeps the open scopes in step with the run, from what a source reports."""

    def __init__(self, builder: LedgerBuilder, owner: ScopeOwner | None = None, calls: ModuleCalls | None = None) -> None:
        self.scopes = ScopeStack(builder, owner)
        self.calls = calls if calls is not None else ModuleCalls()
        self.task = -1
        """The running backward pass, -1 outside a pass."""
        self.pinned = 0
        """Number of open scopes that backward's modules must not close: recomputation, optimizers, engine tasks."""
        self.passes: list[BackwardPass] = []
        self.on_root: OnRoot | None = None
        self._optimizers: list[tuple[int, int]] = []

    @property
    def module(self) -> int:
        """The number of the module whose forward or backward runs, -1 if there is none."""
        chain = self.passes[-1].chain if self.task != -1 and not self.pinned and self.passes else self.calls.chain
        return chain[-1][1] if chain else -1

    @property
    def pass_scope(self) -> int:
        """The scope of the outermost running backward pass, -1 outside a pass."""
        return self.passes[0].scope if self.passes else -1

    # -- backward ------------------------------------------------------------------------------------------------------------

    def begin_pass(self, task: int, table: SequenceTable) -> None:
        """Begins a backward pass over the nodes in ``table``."""
        self.passes.append(BackwardPass(task, self.scopes, table, self.pinned, None if self.passes else self.on_root))
        self.task, self.pinned = task, 0

    def leave_pass(self) -> None:
        """Ends the innermost backward pass."""
        if self.on_root is not None and len(self.passes) == 1:
            self.on_root(-1)
        ended = self.passes.pop()
        self.scopes.pop_to(ended.outer_depth)
        self.task, self.pinned = self.passes[-1].task if self.passes else -1, ended.outer_pinned

    # -- modules -------------------------------------------------------------------------------------------------------------

    def enter_module(self, identity: int, number: int, size: int = 0) -> int:
        """Begins a module call, in backward a recomputation; returns the number of its scope."""
        is_recomputed = self.task != -1
        depth = self.scopes.depth
        scope = self.scopes.push(Phase.RECOMPUTE if is_recomputed else Phase.FORWARD, number, size)
        self.pinned += is_recomputed
        self.calls.enter(identity, scope, number, depth)
        return scope

    def exit_module(self, identity: int, size: int = 0) -> None:
        """Ends a call, and the calls inside it that never ended."""
        depths = self.calls.exit(identity)
        if depths:
            self.scopes.pop_to(depths[-1], size)
            self.pinned = max(0, self.pinned - (len(depths) if self.task != -1 else 0))

    # -- optimizers and engines ----------------------------------------------------------------------------------------------

    def enter_optimizer(self, identity: int) -> None:
        self.exit_optimizer(identity)  # a step that raised never told us that it ended
        self._optimizers.append((identity, self.enter_pinned(Phase.OPTIMIZER)))

    def exit_optimizer(self, identity: int) -> None:
        if any(known == identity for known, _ in self._optimizers):
            ended = None
            while ended != identity:
                ended, depth = self._optimizers.pop()
                self.pinned = max(0, self.pinned - 1)
            self.scopes.pop_to(depth)

    def enter_pinned(self, phase: Phase, number: int = -1) -> int:
        """Opens a scope that backward's modules must not close; returns the argument for ``exit_pinned``."""
        depth = self.scopes.depth
        self.scopes.push(phase, number)
        self.pinned += 1
        return depth

    def exit_pinned(self, depth: int) -> None:
        self.pinned = max(0, self.pinned - 1)
        self.scopes.pop_to(depth)

    def close(self) -> None:
        """Closes everything: at the end, or after an exception that we did not see."""
        self.scopes.pop_to(0)
        self.calls.clear()
        self.passes.clear()
        self._optimizers.clear()
        self.task, self.pinned = -1, 0
