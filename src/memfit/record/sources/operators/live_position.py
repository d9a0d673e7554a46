"""A thread's position, read from the autograd engine while it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from memfit.ledger import LedgerBuilder
from memfit.record.position import RunPosition, ScopeOwner
from memfit.torch_compat.autograd import LEAF_SEQUENCE_NR, call_after_backward, current_node, graph_task_id

MOST_NODES = 10_000
"""Most autograd nodes of one pass whose number is read; later ones belong to no known module.

Reading it gives a node a Python object, and torch frees such nodes recursively, with one level of the C stack each.
"""


class LivePosition(RunPosition):
    """Follows the engine. ``after_backward`` is called when no pass runs any more, ``end_pass`` by the engine with the pass that
    it is done with."""

    def __init__(
        self, builder: LedgerBuilder, owner: ScopeOwner, after_backward: Callable[[], None], end_pass: Callable[[int], None]
    ) -> None:
        super().__init__(builder, owner)
        self.at_leaf = False
        """True while backward accumulates a leaf's gradient."""
        self._after_backward, self._end_pass = after_backward, end_pass

    def follow(self, task: int) -> None:
        """Moves to the engine's current node. ``task`` is its pass in this thread, -1 outside a pass."""
        if task != self.task:
            self._switch_pass(task)
        if task == -1 or self.pinned or self.passes[-1].num_nodes > MOST_NODES:
            return
        node = current_node()
        if node is None:
            return
        sequence_nr = node._sequence_nr()
        self.at_leaf = sequence_nr == LEAF_SEQUENCE_NR
        if not self.at_leaf:  # a leaf's gradient is part of the module whose node made it
            self.passes[-1].move_to(sequence_nr)
            if self.passes[-1].num_nodes > MOST_NODES:
                self.passes[-1].move_out()
                self.at_leaf = False

    def catch_up(self) -> None:
        """Moves to the engine's current node if the engine runs, or ran at the last look."""
        task = graph_task_id()
        if task != -1 or self.task != -1:
            self.follow(task)

    def end_pass(self, task: int) -> None:
        """Ends a pass: blocks that die from here on did not die in backward."""
        if self.task == task and self.passes:
            self._switch_pass(self.passes[-2].task if len(self.passes) > 1 else -1)

    def _switch_pass(self, task: int) -> None:
        while self.passes and self.passes[-1].task != task and (task == -1 or any(p.task == task for p in self.passes)):
            self.leave_pass()
        if task != -1 and (not self.passes or self.passes[-1].task != task):
            self.begin_pass(task, self.calls.latest)
            call_after_backward(partial(self._end_pass, task))
        self.task = task
        if task == -1:
            self._after_backward()
