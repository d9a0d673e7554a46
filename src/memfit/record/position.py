"""Where the run is: whose forward or backward, which optimizer's step, which of FSDP's tasks.

::

    module calls, optimizer steps, FSDP's work ──┐
    the autograd node that runs ─────────────────┴──> RunPosition ──> scopes that open and close in the ledger

Backward needs no hooks: the node that runs tells, by its sequence number, in whose forward it was made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from memfit.ledger import LedgerBuilder, Phase
from memfit.record.module_calls import ModuleCalls
from memfit.record.scopes import BackwardPass, ScopeOwner, ScopeStack
from memfit.torch_compat.autograd import LEAF_SEQUENCE_NR, call_after_backward, current_node, graph_task_id

MOST_NODES = 10_000
"""So many autograd nodes of one pass are asked for their number; what comes after them is of no known module.

To ask a node gives it a Python object, and torch frees nodes that have one by recursion, one level of the C stack each.
"""


class RunPosition:
    """Keeps the open scopes in step with the run."""

    def __init__(
        self,
        builder: LedgerBuilder,
        after_backward: Callable[[], None],
        end_pass: Callable[[int], None],
        owner: ScopeOwner | None = None,
    ) -> None:
        self.scopes = ScopeStack(builder, owner)
        self.calls = ModuleCalls()
        self.task = -1
        """The backward pass that was running when we last looked, -1 outside one."""
        self.pinned = 0
        """How many scopes are open that backward's modules must not close: recomputation, optimizers, FSDP."""
        self.at_leaf = False
        """Does backward add up the gradient of a leaf?"""
        self._after_backward, self._end_pass = after_backward, end_pass
        self._passes: list[BackwardPass] = []
        self._optimizers: list[tuple[int, int]] = []

    # -- backward ------------------------------------------------------------------------------------------------------------

    def follow(self, task: int) -> None:
        """Moves to where the autograd engine is; ``task`` is its pass in this thread, -1 outside one."""
        if task != self.task:
            self._switch_pass(task)
        if task == -1 or self.pinned or self._passes[-1].num_nodes > MOST_NODES:
            return
        node = current_node()
        if node is None:
            return
        sequence_nr = node._sequence_nr()
        self.at_leaf = sequence_nr == LEAF_SEQUENCE_NR
        if not self.at_leaf:  # a leaf's gradient is part of the module whose node made it
            self._passes[-1].move_to(sequence_nr)
            if self._passes[-1].num_nodes > MOST_NODES:
                self._passes[-1].move_out()
                self.at_leaf = False

    @property
    def module(self) -> int:
        """The number of the module whose forward or backward runs, -1 if none."""
        chain = self._passes[-1].chain if self.task != -1 and not self.pinned and self._passes else self.calls.chain
        return chain[-1][1] if chain else -1

    def catch_up(self) -> None:
        """Moves to where the engine is, if it runs or ran when we last looked."""
        task = graph_task_id()
        if task != -1 or self.task != -1:
            self.follow(task)

    def end_pass(self, task: int) -> None:
        """The engine is done with a pass: what dies from here on did not die in backward."""
        if self.task == task and self._passes:
            self._switch_pass(self._passes[-2].task if len(self._passes) > 1 else -1)

    def _switch_pass(self, task: int) -> None:
        while self._passes and self._passes[-1].task != task and (task == -1 or any(p.task == task for p in self._passes)):
            ended = self._passes.pop()
            self.scopes.pop_to(ended.outer_depth)
            self.pinned = ended.outer_pinned
        if task != -1 and (not self._passes or self._passes[-1].task != task):
            self._passes.append(BackwardPass(task, self.scopes, self.calls.latest, self.pinned))
            self.pinned = 0
            call_after_backward(partial(self._end_pass, task))
        self.task = task
        if task == -1:
            self._after_backward()

    # -- modules -------------------------------------------------------------------------------------------------------------

    def enter_module(self, identity: int, number: int, size: int) -> None:
        is_recomputed = graph_task_id() != -1
        depth = self.scopes.depth
        scope = self.scopes.push(Phase.RECOMPUTE if is_recomputed else Phase.FORWARD, number, size)
        self.pinned += is_recomputed
        self.calls.enter(identity, scope, number, depth)

    def exit_module(self, identity: int, size: int) -> None:
        task = graph_task_id()
        if task != self.task:
            self.follow(task)
        depths = self.calls.exit(identity)
        if depths:
            self.scopes.pop_to(depths[-1], size)
            self.pinned = max(0, self.pinned - (len(depths) if task != -1 else 0))

    # -- optimizers and FSDP ---------------------------------------------------------------------------------------------------

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
        """Opens a scope that backward's modules must not close; gives what ``exit_pinned`` takes."""
        depth = self.scopes.depth
        self.scopes.push(phase, number)
        self.pinned += 1
        return depth

    def exit_pinned(self, depth: int) -> None:
        self.pinned = max(0, self.pinned - 1)
        self.scopes.pop_to(depth)

    def close(self) -> None:
        """At the end, and after an exception that went past us."""
        self.scopes.pop_to(0)
        self.calls.clear()
        self._passes.clear()
        self._optimizers.clear()
        self.task, self.pinned = -1, 0
