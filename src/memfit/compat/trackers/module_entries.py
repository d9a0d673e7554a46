"""``memory_tracking``: one dictionary that is the callers' as well as ours.

PyTorch's tracker writes into its dictionary as the run goes on, and callers clear it, take entries out, and change what they find.
Ours is computed from the ledger. So we remember what we wrote: what still is as we wrote it is brought up to date, everything else
is a caller's and stays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from memfit.compat.trackers.tracker_snapshots import ModuleMemStats

Since = Mapping[int, int]
"""By module's number: how many events there were when a caller took its entry away. It begins anew after them."""


class ModuleEntries:
    """The entries of modules, and what was written into them."""

    def __init__(self, entries: WeakIdKeyDictionary | None = None) -> None:
        """With a dictionary: it is emptied, and goes on."""
        self.entries = WeakIdKeyDictionary() if entries is None else entries
        self.entries.clear()
        self._written: dict[int, ModuleMemStats] = {}
        self._since: dict[int, int] = {}
        self._num_events = -1

    def is_older_than(self, num_events: int) -> bool:
        return self._num_events != num_events

    def update(
        self,
        num_events: int,
        modules: Sequence[tuple[nn.Module, int]],
        gather: Callable[[Since], dict[int, ModuleMemStats]],
    ) -> None:
        """Brings every entry up to date; ``gather`` computes the statistics of modules by their numbers."""
        for module, number in modules:
            if number in self._written and module not in self.entries:
                del self._written[number]
                self._since[number] = max(self._num_events, 0)
        stats = gather(self._since)
        for module, number in modules:
            if number in stats:
                self._update_entry(module, number, stats[number])
        self._num_events = num_events

    def _update_entry(self, module: nn.Module, number: int, new: ModuleMemStats) -> None:
        written = self._written.get(number)
        self._written[number] = copy.deepcopy(new)
        if module not in self.entries:
            self.entries[module] = new
        elif written is not None and isinstance(self.entries[module], ModuleMemStats):
            _bring_up_to_date(self.entries[module], written, new)


def _bring_up_to_date(entry: ModuleMemStats, written: ModuleMemStats, new: ModuleMemStats) -> None:
    for field in fields(ModuleMemStats):
        if field.name != "snapshots" and getattr(entry, field.name) == getattr(written, field.name):
            setattr(entry, field.name, getattr(new, field.name))
    for state, snapshots in new.snapshots.items():
        known = written.snapshots.get(state, [])
        taken = entry.snapshots.setdefault(state, [])
        if taken == known:
            taken[:] = snapshots
        else:
            taken += snapshots[len(known) :]
