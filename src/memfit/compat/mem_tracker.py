"""``MemTracker``, with PyTorch's methods, over ``memfit.track``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from memfit.analysis import take_snapshots
from memfit.compat.trackers.display import natural_order, print_snapshot, print_states
from memfit.compat.trackers.fake_values import assume_values, stop_assuming_values
from memfit.compat.trackers.module_entries import ModuleEntries, Since
from memfit.compat.trackers.torch_categories import MEM_REF_TYPES, MemRefType, ModState, SnapshotState
from memfit.compat.trackers.tracker_snapshots import (
    ModuleMemStats,
    Snapshot,
    StateMoment,
    Translation,
    event_at,
    stats_over_devices,
)
from memfit.ledger import Ledger, Phase
from memfit.ledger.schema import Array
from memfit.record.tracker import Tracker
from memfit.torch_compat.dispatch import TorchDispatchMode, enter_mode, leave_mode, modes_of_this_thread, tree_leaves
from memfit.torch_compat.fsdp import loaded


class MemTracker(TorchDispatchMode):
    """Tracks, categorises and attributes the memory of everything that runs inside its context.

    ::

        tracker = MemTracker()
        tracker.track_external(model, optimizer, batch)
        with tracker:
            train_step()
        tracker.display_snapshot("peak", units="MiB")
        tracker.display_modulewise_snapshots(depth=3, units="MiB")

    Any number of iterations; ``ledger`` has all of what was recorded.
    """

    _translation = Translation(MEM_REF_TYPES)
    _states: dict[Phase, tuple[SnapshotState | None, SnapshotState | None, SnapshotState | None]] = {
        Phase.FORWARD: (ModState.PEAK_FW, ModState.PRE_FW, ModState.POST_FW),
        Phase.BACKWARD: (ModState.PEAK_BW, ModState.PRE_BW, ModState.POST_BW),
        Phase.RECOMPUTE: (None, ModState.PRE_FW_AC, ModState.POST_FW_AC),
    }
    """By phase: the states of a scope's peak, its beginning and its end, where they have one."""

    def __init__(self) -> None:
        super().__init__()
        self._tracker = Tracker(witness="operators")
        self._since_ns = self._depth = 0
        self._modules = ModuleEntries()

    @property
    def ledger(self) -> Ledger:
        return self._tracker.ledger

    @property
    def first_event(self) -> int:
        """The first event of the ledger since tracking or ``reset_mod_stats`` began."""
        return self._first_recent_event(self.ledger) + 1

    # -- before --------------------------------------------------------------------------------------------------------------

    def track_external(self, *external: nn.Module | torch.optim.Optimizer | torch.Tensor) -> None:
        """Modules, optimizers and tensors that were made outside the tracker; tensors count as ``Other``."""
        kinds = (nn.Module, torch.optim.Optimizer, torch.Tensor)
        leaves = [leaf for leaf in tree_leaves(external) if leaf is not None]
        for leaf in leaves:
            if not isinstance(leaf, kinds):
                raise TypeError(f"cannot track a {type(leaf).__name__}: pass modules, optimizers and tensors")
        self._tracker.adopt(*leaves)

    # -- answers -------------------------------------------------------------------------------------------------------------

    def get_tracker_snapshot(self, type: str = "current") -> Snapshot:
        """Bytes by device and category: ``"current"``, or ``"peak"`` since tracking or ``reset_mod_stats`` began."""
        if type == "current":
            return self._translation.snapshot(self._tracker.running_totals().current())
        if type == "peak":
            return self._translation.snapshot(self._tracker.running_totals().peak())
        raise ValueError(f"Invalid type {type}")

    @property
    def memory_tracking(self) -> WeakIdKeyDictionary:
        """Module -> its statistics and snapshots by state, since tracking or ``reset_mod_stats`` began.

        One dictionary, kept up to date: what a caller changes in it, adds or takes away stays so.
        """
        totals = self._tracker.running_totals()
        totals.catch_up()
        if self._modules.is_older_than(totals.num_events):
            ledger = self.ledger
            self._modules.update(totals.num_events, list(self._tracker.modules()), lambda since: self._module_stats(ledger, since))
        return self._modules.entries

    @memory_tracking.setter
    def memory_tracking(self, entries: WeakIdKeyDictionary) -> None:
        self._modules.entries = entries

    def _module_stats(self, ledger: Ledger, since: Since) -> dict[int, ModuleMemStats]:
        """By module's number; ``since``: the number of events before which nothing counts, for some modules."""
        stats = dict(stats_over_devices(ledger))
        for moment in sorted(self._moments(ledger), key=lambda moment: moment.event):
            if moment.event >= since.get(moment.module, 0):
                stats[moment.module].add(moment.state, self._translation.snapshot(moment.snapshot))
        return {module: entry for module, entry in stats.items() if entry.snapshots}

    def _moments(self, ledger: Ledger) -> Iterator[StateMoment]:
        recent = ledger.scope_enter > self._first_recent_event(ledger)
        for taken in take_snapshots(ledger, np.flatnonzero((ledger.scopes.module >= 0) & recent & ~_inside_a_wrapper(ledger))):
            begin, end = int(ledger.scope_enter[taken.scope]), int(ledger.scope_exit[taken.scope])
            states = self._states.get(taken.phase, (None, None, None))
            for event, state, snapshot in zip((begin, begin, end), states, (taken.peak, taken.enter, taken.exit), strict=True):
                if state is not None and snapshot is not None:
                    yield StateMoment(event=event, module=taken.module, state=state, snapshot=snapshot)

    def _first_recent_event(self, ledger: Ledger) -> int:
        return event_at(ledger, self._since_ns) if self._since_ns else -1

    def reset_mod_stats(self) -> None:
        """Starts the statistics and the peak anew; what is in use stays known."""
        self._tracker.running_totals().restart_peak()
        self._since_ns = self._tracker.elapsed_ns()
        self._modules = ModuleEntries(self._modules.entries)

    # -- printed -------------------------------------------------------------------------------------------------------------

    def display_snapshot(self, type: str = "current", units: str = "B", tabulate: bool = False) -> None:
        """Prints ``get_tracker_snapshot(type)`` in B, KiB, MiB or GiB."""
        print_snapshot(self.get_tracker_snapshot(type), units, tabulate)

    def display_modulewise_snapshots(self, depth: int = 2, units: str = "B", tabulate: bool = False) -> None:
        """Prints the snapshots of every module down to ``depth`` levels."""
        for entry in sorted(self.memory_tracking.values(), key=lambda entry: natural_order(entry.mod_fqn)):
            if entry.mod_fqn.count(".") < depth:
                print(f"Module:  {entry.mod_fqn}")
                print_states(entry.snapshots, units, tabulate)

    # -- context -------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._tracker.__enter__()
        assume_values()
        self._depth += 1
        if self._depth == 1 and self._is_overridden:
            enter_mode(self)  # above the recorder: what a subclass does with an operator is recorded
        return self

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self in modes_of_this_thread():
            leave_mode(self)
        stop_assuming_values()
        self._tracker.__exit__(*_three(error))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """For subclasses, which may do something around each operator. Without one, no operator comes through here."""
        tensors = loaded("torch.distributed.tensor")
        if tensors is not None and any(issubclass(kind, tensors.DTensor) for kind in types):
            return NotImplemented  # DTensor takes it apart, and the operators on local tensors come here after it
        return func(*args, **(kwargs or {}))

    @property
    def _is_overridden(self) -> bool:
        return type(self).__torch_dispatch__ is not MemTracker.__torch_dispatch__


_MemRefType, _ModState = MemRefType, ModState
"""PyTorch's names for them, which its own tests import."""


def _three(error: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """What a context manager is told when it is left; PyTorch's own tools leave it without a word."""
    return error if len(error) == 3 else (None, None, None)


def _inside_a_wrapper(ledger: Ledger) -> Array:
    """Per scope: is it inside a wrapper's (FSDP, DDP, checkpoint wrappers)? Both have one name, and the outer scope has it all."""
    module, phase, parent = ledger.scopes.module, ledger.scopes.phase, ledger.scopes.parent
    inside: Array = (parent >= 0) & (module[parent] == module) & (phase[parent] == phase)
    return inside
