"""Marks on the host: which module runs, whose backward, which step. Each one is a row of four numbers, one of them the time.
Nothing else happens while the run goes on.

::

    nn.Module.__call__           a module's forward begins and ends
    the engine's run             a backward pass begins and ends
    a node of a module's output  called by the engine before the node runs: backward is in that module now; in the first steps
    optimizers, FSDP, steps      told by run_hooks.py

The nodes at the borders of modules are enough to place backward: each has a sequence number, and the numbers at a module's entry
and exit bracket the nodes of its forward. Hooks are on nodes of the graph, never on tensors or modules, and die with the graph.
They cost some twenty microseconds each, because the engine's thread has to wait for Python; so they are there in the first steps
only, and ``backward_plans.py`` places what follows.

The rare marks, those of steps, passes, optimizers and FSDP, also leave a note with the allocator, whose entries carry it from then
on: a second word on their order. Notes cost half a microsecond, which calls of modules do not pay.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.compiler import is_compiling

from memfit.ledger.schema import Array
from memfit.record.sources.allocator.facts import Fact, FactGroups
from memfit.torch_compat.autograd import ENGINE_RUNS, LEAF_SEQUENCE_NR, next_sequence_nr
from memfit.torch_compat.patches import Patches
from memfit.torch_compat.tensors import is_transforming

NOT_MARKED = -1
"""In place of a module's number: its calls are not marked."""

MODULE_BITS = 32
"""A phase and a module in one number: the module plus one in the lower bits."""


class MarkKind(IntEnum):
    """What a mark says. Its value is a number, its sequence number the one that the next autograd node will have."""

    ENTER = 0
    """A module's forward begins; the value is the module."""
    EXIT = 1
    NODE = 2
    """The engine comes to the node with this sequence number."""
    BACKWARD = 3
    """A backward pass begins; the value is 1 if the engine tells of its nodes."""
    BACKWARD_ENDS = 4
    OPTIMIZER = 5
    """An optimizer's step begins; the value is its identity."""
    OPTIMIZER_ENDS = 6
    PHASE = 7
    """Work of FSDP or on state dicts begins; the value has the phase and the module."""
    PHASE_ENDS = 8
    STEP = 9
    """A training step begins; the value is its number."""
    LEARN = 10
    """Something was learned of blocks; the value says which of the facts."""
    EMPTY_CACHE = 11


_ENTER, _EXIT, _NODE = int(MarkKind.ENTER), int(MarkKind.EXIT), int(MarkKind.NODE)

WIDTH = 4
"""Numbers in a row: kind, value, time, sequence number."""


class MarkLog(NamedTuple):
    """The marks of a window."""

    first: int
    """The number of the first of them."""
    rows: Array
    """Each one: kind, value, time, sequence number."""
    facts: list[FactGroups]
    """What a mark of the kind ``LEARN`` points into."""


class Marks:
    """The rows since they were last taken, with what was learned, and what writes them.

    ``begin_root`` is called with a module and its arguments before the forward of a module that is in no other; ``name`` gives the
    number of a module that was not seen before.
    """

    def __init__(
        self,
        set_note: Callable[[str], None] | None,
        begin_root: Callable[[nn.Module, Any], None],
        name: Callable[[nn.Module], int],
    ) -> None:
        self.rows: list[int] = []
        self._first = 0
        """The number of the first row."""
        self._facts: list[FactGroups] = []
        self._fresh: list[Collection[Fact]] = []
        self._set_note = set_note
        self._begin_root, self._name = begin_root, name
        self._numbers: dict[int, int] = {}
        self._deaths: dict[int, weakref.ref[nn.Module]] = {}
        self._depth = 0
        self.left_out: set[int] = set()
        """The modules whose calls are not marked."""
        self._hooked: set[int] = set()
        self._handles: list[Any] = []
        self.places_backward = True
        """Are the nodes at the borders of modules hooked?"""
        self._patches = Patches("the recorder")

    @property
    def count(self) -> int:
        """The number that the next mark will have."""
        return self._first + len(self.rows) // WIDTH

    def write(self, kind: MarkKind, value: int = 0) -> None:
        """Writes a mark of the moment."""
        number = self._first + len(self.rows) // WIDTH
        self.rows += (int(kind), value, time.time_ns(), next_sequence_nr())
        if self._set_note is not None:
            self._set_note(str(number))

    def learn(self, facts: Collection[Fact]) -> None:
        """Something is known of blocks from the next ``write_learned`` on."""
        if facts:
            self._fresh.append(facts)

    def write_learned(self) -> None:
        """Writes a mark for what was learned since the last one, if anything was."""
        if self._fresh:
            self._facts.append(FactGroups(self._fresh))
            self._fresh = []
            self.write(MarkKind.LEARN, len(self._facts) - 1)

    def take(self) -> MarkLog:
        """What there is so far, which is then forgotten."""
        length = len(self.rows)
        rows = np.array(self.rows[:length], dtype=np.int64).reshape(-1, WIDTH)
        taken = MarkLog(self._first, rows, self._facts)
        self._first += len(rows)
        self._facts = []
        del self.rows[:length]
        return taken

    def forget_nodes(self) -> None:
        """A step is over: its graph is gone, or will be."""
        self._hooked.clear()
        self._handles.clear()

    def leave_out(self, modules: set[int]) -> None:
        """From now on, calls of these modules are not marked."""
        self.left_out |= modules
        for identity, number in self._numbers.items():
            if number in modules:
                self._numbers[identity] = NOT_MARKED

    # -- in place while the run goes on ----------------------------------------------------------------------------------------

    def install(self) -> None:
        self._patches.because("which module runs").wrap(nn.Module, "__call__", self._module_call)
        self._patches.because("when backward begins and ends")
        for owner, name in ENGINE_RUNS:
            self._patches.wrap(owner, name, self._engine_run)

    def remove(self) -> None:
        self._patches.undo()
        for handle in self._handles:
            handle.remove()
        self.forget_nodes()

    def _module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        rows, numbers, clock, sequence_nr = self.rows, self._numbers, time.time_ns, next_sequence_nr
        marks, hook = self, self._hook

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # torch's profiler takes the module from ``self``
            if is_compiling():
                return original(self, *args, **kwargs)
            number = numbers.get(id(self))
            if number is None or not marks._depth:
                number = marks._meet(self, (args, kwargs))
            if number == NOT_MARKED:
                return original(self, *args, **kwargs)
            places_backward = marks.places_backward
            if places_backward and torch.is_grad_enabled():
                hook(args or kwargs)
            marks._depth += 1
            rows.extend((_ENTER, number, clock(), sequence_nr()))
            try:
                result = original(self, *args, **kwargs)
            finally:
                marks._depth -= 1
                rows.extend((_EXIT, number, clock(), sequence_nr()))
            if places_backward:
                hook(result)
            return result

        return call

    def _engine_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            # Modules that are called inside of a pass, to recompute, have nodes with numbers of their own.
            hooked, depth, self._hooked, self._depth = self._hooked, self._depth, set(), max(self._depth, 1)
            self.write(MarkKind.BACKWARD, int(self.places_backward))
            try:
                return original(*args, **kwargs)
            finally:
                self._hooked, self._depth = hooked, depth
                self.write(MarkKind.BACKWARD_ENDS)

        return run

    def _meet(self, module: nn.Module, arguments: Any) -> int:
        """The number of a module that is new to us, or that is the outermost one; whatever is wrong with it, it is called."""
        if not self._depth:
            self._begin_root(module, arguments)
        number = self._numbers.get(id(module))
        if number is None:
            number = self._name(module)
            identity = id(module)
            self._numbers[identity] = number
            self._deaths[identity] = weakref.ref(module, partial(self._forget, identity))
        return number

    def _forget(self, identity: int, _: weakref.ref[nn.Module]) -> None:
        self._numbers.pop(identity, None)
        self._deaths.pop(identity, None)

    def _hook(self, value: Any) -> None:
        """Has the engine tell when it comes to the node that made the first tensor in ``value``."""
        tensor = _first_tensor(value)
        if tensor is None:
            return
        node = tensor.grad_fn
        if node is None or is_transforming():
            return
        number = node._sequence_nr()
        if number not in self._hooked and number < LEAF_SEQUENCE_NR:
            self._hooked.add(number)
            self._handles.append(node.register_prehook(partial(self._reach, number)))

    def _reach(self, sequence_nr: int, _: Any) -> None:
        self.rows.extend((_NODE, sequence_nr, time.time_ns(), 0))


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            if isinstance(item, torch.Tensor):
                return item
        return _first_tensor(value[0]) if value and isinstance(value[0], (tuple, list, dict)) else None
    return None
