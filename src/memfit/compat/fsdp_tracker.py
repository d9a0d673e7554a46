"""``FSDPMemTracker``, with PyTorch's methods and FSDP's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from memfit.analysis import Snapshot, trace_total
from memfit.analysis.timeline import breakdowns_at
from memfit.compat.mem_tracker import MemTracker
from memfit.compat.snapshots import ModuleMemStats, Translation
from memfit.compat.words import FSDP_REF_TYPES, TOTAL, FSDPModState
from memfit.errors import ConfigError
from memfit.ledger import Ledger, Phase
from memfit.ledger.schema import Array
from memfit.record.fsdp_private import is_fsdp_root


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
        Phase.FORWARD: (FSDPModState.PEAK_FW, FSDPModState.BEF_PRE_FW, None),
        Phase.FSDP_PRE_FORWARD: (None, None, FSDPModState.AFT_PRE_FW),
        Phase.FSDP_POST_FORWARD: (None, FSDPModState.BEF_POST_FW, FSDPModState.AFT_POST_FW),
        Phase.FSDP_PRE_BACKWARD: (None, FSDPModState.BEF_PRE_BW, FSDPModState.AFT_PRE_BW),
        Phase.FSDP_POST_BACKWARD: (None, FSDPModState.BEF_POST_BW, FSDPModState.AFT_POST_BW),
        Phase.RECOMPUTE: (None, FSDPModState.PRE_FW_AC, FSDPModState.POST_FW_AC),
    }

    def __init__(self, mod: nn.Module, optm: torch.optim.Optimizer | None = None) -> None:
        super().__init__()
        if not is_fsdp_root(mod):
            raise ConfigError("FSDPMemTracker only supports FSDP modules: apply fully_shard to it first, or use MemTracker")
        self._tracker.adopt(mod, *([optm] if optm is not None else []))

    def track_inputs(self, inputs: tuple[Any, ...]) -> None:
        """The tensors of a batch, to be counted as ``Inputs``."""
        super().track_external(*(leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)))

    def track_external(self, *external: nn.Module | torch.optim.Optimizer | torch.Tensor) -> None:
        """Does nothing, as in PyTorch: the model and the optimizer are given at the start, inputs to ``track_inputs``."""

    def _module_stats(self, ledger: Ledger) -> dict[int, ModuleMemStats]:
        stats = super()._module_stats(ledger)
        units = {number: entry for number, entry in stats.items() if FSDPModState.AFT_PRE_FW in entry.snapshots}
        for number, highest in _backward_peaks(ledger, units, self._first_recent_event(ledger)):
            snapshot = self._translation.snapshot(highest)
            units[number].add(FSDPModState.PEAK_BW, snapshot)
            units[number].local_peak = {device: sizes[TOTAL] for device, sizes in snapshot.items()}
        return units


def _backward_peaks(ledger: Ledger, modules: Iterable[int], since: int) -> Iterator[tuple[int, Snapshot]]:
    """Per unit and backward: the highest moment from the unsharding before it to the reduction after it."""
    spans = []
    for module in modules:
        begins = _events_of(ledger, module, Phase.FSDP_PRE_BACKWARD, ledger.scope_enter)
        ends = _events_of(ledger, module, Phase.FSDP_POST_BACKWARD, ledger.scope_exit)
        spans += [(module, begin, end) for begin, end in zip(begins, ends, strict=False) if begin > since]
    first = np.array([begin for _, begin, _ in spans], dtype=np.int64)
    last = np.minimum(np.array([end for _, _, end in spans], dtype=np.int64), len(ledger.events) - 1)
    by_device = {
        device.name: breakdowns_at(ledger, trace_total(ledger, number).highest_between(first, last), number)
        for number, device in enumerate(ledger.devices)
    }
    for i, (module, _, _) in enumerate(spans):
        yield module, {name: breakdowns[i] for name, breakdowns in by_device.items()}


def _events_of(ledger: Ledger, module: int, phase: Phase, events: Array) -> list[int]:
    found: list[int] = events[(ledger.scopes.module == module) & (ledger.scopes.phase == phase)].tolist()
    return found
