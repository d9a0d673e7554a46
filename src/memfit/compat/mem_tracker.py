"""``MemTracker``, with PyTorch's methods, over ``memfit.track``."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from memfit.analysis import take_snapshots
from memfit.compat.display import natural_order, print_snapshot, print_states
from memfit.compat.fake_values import assume_values, stop_assuming_values
from memfit.compat.torch_categories import MEM_REF_TYPES, ModState, State
from memfit.compat.tracker_snapshots import ModuleMemStats, Moment, Snapshot, Translation, event_at, stats_over_devices
from memfit.ledger import Ledger, Phase
from memfit.ledger.schema import Array
from memfit.record import Tracker
from memfit.torch_compat.dispatch import tree_leaves


class MemTracker:
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
    _states: dict[Phase, tuple[State | None, State | None, State | None]] = {
        Phase.FORWARD: (ModState.PEAK_FW, ModState.PRE_FW, ModState.POST_FW),
        Phase.BACKWARD: (ModState.PEAK_BW, ModState.PRE_BW, ModState.POST_BW),
        Phase.RECOMPUTE: (None, ModState.PRE_FW_AC, ModState.POST_FW_AC),
    }
    """By phase: the states of a scope's peak, its beginning and its end, where they have one."""

    def __init__(self) -> None:
        self._tracker = Tracker()
        self._since_ns = 0

    @property
    def ledger(self) -> Ledger:
        return self._tracker.ledger

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
            return self._translation.current(self.ledger)
        if type == "peak":
            return self._translation.peak(self.ledger, self._since_ns)
        raise ValueError(f"Invalid type {type}")

    @property
    def memory_tracking(self) -> WeakIdKeyDictionary:
        """Module -> its statistics and snapshots by state, since tracking or ``reset_mod_stats`` began."""
        found = WeakIdKeyDictionary()
        stats = self._module_stats(self.ledger)
        for module, number in self._tracker.modules():
            if number in stats:
                found[module] = stats[number]
        return found

    def _module_stats(self, ledger: Ledger) -> dict[int, ModuleMemStats]:
        stats = dict(stats_over_devices(ledger))
        for moment in sorted(self._moments(ledger), key=lambda moment: moment.event):
            stats[moment.module].add(moment.state, self._translation.snapshot(moment.snapshot))
        return {module: entry for module, entry in stats.items() if entry.snapshots}

    def _moments(self, ledger: Ledger) -> Iterator[Moment]:
        recent = ledger.scope_enter > self._first_recent_event(ledger)
        for taken in take_snapshots(ledger, np.flatnonzero((ledger.scopes.module >= 0) & recent & ~_inside_a_wrapper(ledger))):
            begin, end = int(ledger.scope_enter[taken.scope]), int(ledger.scope_exit[taken.scope])
            states = self._states.get(taken.phase, (None, None, None))
            for event, state, snapshot in zip((begin, begin, end), states, (taken.peak, taken.enter, taken.exit), strict=True):
                if state is not None and snapshot is not None:
                    yield Moment(event=event, module=taken.module, state=state, snapshot=snapshot)

    def _first_recent_event(self, ledger: Ledger) -> int:
        return event_at(ledger, self._since_ns) if self._since_ns else -1

    def reset_mod_stats(self) -> None:
        """Starts the statistics and the peak anew; what is in use stays known."""
        self._since_ns = self._tracker.elapsed_ns()

    # -- printed -------------------------------------------------------------------------------------------------------------

    def display_snapshot(self, type: str = "current", units: str = "B", tabulate: bool = False) -> None:
        """Prints ``get_tracker_snapshot(type)`` in B, KiB, MiB or GiB."""
        print_snapshot(self.get_tracker_snapshot(type), units, tabulate)

    def display_modulewise_snapshots(self, depth: int = 2, units: str = "B", tabulate: bool = False) -> None:
        """Prints the snapshots of every module down to ``depth`` levels."""
        stats = self._module_stats(self.ledger).values()
        for entry in sorted(stats, key=lambda entry: natural_order(entry.mod_fqn)):
            if entry.mod_fqn.count(".") < depth:
                print(f"Module:  {entry.mod_fqn}")
                print_states(entry.snapshots, units, tabulate)

    # -- context -------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._tracker.__enter__()
        assume_values()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        stop_assuming_values()
        self._tracker.__exit__(kind, error, trace)


def _inside_a_wrapper(ledger: Ledger) -> Array:
    """Per scope: is it inside a wrapper's (FSDP, DDP, checkpoint wrappers)? Both have one name, and the outer scope has it all."""
    module, phase, parent = ledger.scopes.module, ledger.scopes.phase, ledger.scopes.parent
    inside: Array = (parent >= 0) & (module[parent] == module) & (phase[parent] == phase)
    return inside
