"""``FSDPMemTracker``, with PyTorch's methods and FSDP's words."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from memfit.analysis import Snapshot, trace_total
from memfit.analysis.timeline import breakdowns_at
from memfit.compat.mem_tracker import MemTracker
from memfit.compat.trackers.module_entries import Since
from memfit.compat.trackers.torch_categories import FSDP_REF_TYPES, FSDPModState
from memfit.compat.trackers.tracker_snapshots import ModuleMemStats, StateMoment, Translation
from memfit.errors import ConfigError
from memfit.ledger import Ledger, Phase
from memfit.torch_compat.dispatch import tree_leaves
from memfit.torch_compat.fsdp import is_fsdp_root, parameter_groups


class FSDPMemTracker(MemTracker):
    """A ``MemTracker`` for a model under FSDP2 or FSDP1: ``memory_tracking`` has its FSDP units and their states.

    ::

        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((batch,))
        with tracker:
            train_step()
        tracker.display_snapshot("peak", units="MiB")
    """

    _translation = Translation(FSDP_REF_TYPES)
    _states = {
        Phase.FORWARD: (FSDPModState.PEAK_FW, FSDPModState.BEF_PRE_FW, FSDPModState.AFT_POST_FW),
        Phase.PRE_FORWARD: (None, None, FSDPModState.AFT_PRE_FW),
        Phase.POST_FORWARD: (None, FSDPModState.BEF_POST_FW, None),
        Phase.PRE_BACKWARD: (None, FSDPModState.BEF_PRE_BW, FSDPModState.AFT_PRE_BW),
        Phase.POST_BACKWARD: (None, FSDPModState.BEF_POST_BW, FSDPModState.AFT_POST_BW),
        Phase.RECOMPUTE: (None, FSDPModState.PRE_FW_AC, FSDPModState.POST_FW_AC),
    }

    def __init__(self, mod: nn.Module, optm: torch.optim.Optimizer | None = None) -> None:
        super().__init__()
        if not is_fsdp_root(mod):
            raise ConfigError("FSDPMemTracker only supports FSDP modules: apply fully_shard to it first, or use MemTracker")
        self._root = weakref.ref(mod)
        self._tracker.adopt(mod, *([optm] if optm is not None else []))

    def track_inputs(self, inputs: tuple[Any, ...]) -> None:
        """The tensors of a batch, to be counted as ``Inputs``."""
        super().track_external(*(leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)))

    def track_external(self, *external: nn.Module | torch.optim.Optimizer | torch.Tensor) -> None:
        """Does nothing, as in PyTorch: the model and the optimizer are given at the start, inputs to ``track_inputs``."""

    def _module_stats(self, ledger: Ledger, since: Since) -> dict[int, ModuleMemStats]:
        stats = super()._module_stats(ledger, since)
        self._share_in_groups(stats)
        return {number: entry for number, entry in stats.items() if FSDPModState.AFT_PRE_FW in entry.snapshots}

    def _moments(self, ledger: Ledger) -> Iterator[StateMoment]:
        for number, begin, peak in _backward_peaks(ledger, self._first_recent_event(ledger)):
            yield StateMoment(event=begin, module=number, state=FSDPModState.PEAK_BW, snapshot=peak)
        yield from super()._moments(ledger)

    def _share_in_groups(self, stats: dict[int, ModuleMemStats]) -> None:
        """Modules that are sharded together, ``fully_shard([norm, out])``, share what FSDP does once for all of them."""
        root = self._root()
        numbers = {id(module): number for module, number in self._tracker.modules()}
        for group in parameter_groups(root) if root is not None else ():
            first, *others = (numbers.get(id(module), -1) for module in group.modules)
            for other in others:
                if first in stats and other in stats:
                    stats[other].snapshots = stats[first].snapshots | stats[other].snapshots
                    stats[other].local_peak = stats[first].local_peak


def _backward_peaks(ledger: Ledger, since: int) -> Iterator[tuple[int, int, Snapshot]]:
    """Per unit and backward: when it begins, and the highest moment from the unsharding before it to the reduction after it."""
    units = np.unique(ledger.scopes.module[ledger.scopes.phase == Phase.PRE_BACKWARD]).tolist()
    spans = [(unit, begin, end) for unit in units for begin, end in _backward_spans(ledger, unit) if begin > since]
    first = np.array([begin for _, begin, _ in spans], dtype=np.int64)
    last = np.array([end for _, _, end in spans], dtype=np.int64)
    by_device = {
        device.name: breakdowns_at(ledger, trace_total(ledger, number).highest_between(first, last), number)
        for number, device in enumerate(ledger.devices)
    }
    for i, (unit, begin, _) in enumerate(spans):
        yield unit, begin, {name: breakdowns[i] for name, breakdowns in by_device.items()}


def _backward_spans(ledger: Ledger, module: int) -> Iterator[tuple[int, int]]:
    """A unit may be unsharded several times before a backward, one for each of its outputs, and FSDP1 reduces after it reshards."""
    of_module, end = ledger.scopes.module == module, len(ledger.events) - 1
    begins = ledger.scope_enter[of_module & (ledger.scopes.phase == Phase.PRE_BACKWARD)]
    exits = np.minimum(ledger.scope_exit[of_module & (ledger.scopes.phase == Phase.POST_BACKWARD)], end)
    first_exits = np.append(exits, end)[np.searchsorted(exits, begins)]
    next_begins = np.append(begins, end + 1)[np.searchsorted(begins, first_exits)]
    last_exits = np.concatenate(([-1], exits))[np.searchsorted(exits, next_begins)]
    yield from zip(begins.tolist(), np.maximum(first_exits, last_exits).tolist(), strict=True)
