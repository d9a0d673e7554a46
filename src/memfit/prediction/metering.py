"""What ``torch.cuda.memory_allocated()`` and its kin answer in the midst of a prediction."""

from __future__ import annotations

from memfit.allocator import Replay, parse_alloc_conf, replay, requests_from_ledger
from memfit.ledger import LedgerBuilder

DEVICE = "cuda:0"


class LedgerMeter:
    """Serves the ledger so far through the allocator whenever somebody asks."""

    def __init__(self, builder: LedgerBuilder, alloc_conf: str, torch_version: str) -> None:
        self._builder = builder
        self._settings = parse_alloc_conf(alloc_conf, torch_version)
        self._peaks_from = 0
        self._asked_at: tuple[int, dict[str, int]] = (-1, {})

    def statistics(self) -> dict[str, int]:
        """As ``torch.cuda.memory_stats()``."""
        ledger = self._builder.build()
        if len(ledger.events) == self._asked_at[0]:
            return self._asked_at[1]
        if not any(device.name == DEVICE for device in ledger.devices):
            return dict.fromkeys((f"{kind}.all.{figure}" for kind in _LEVELS for figure in ("current", "peak")), 0)
        done = replay(requests_from_ledger(ledger, DEVICE), self._settings)
        statistics = done.memory_stats() | _peaks_since(done, self._peaks_from)
        self._asked_at = (len(ledger.events), statistics)
        return statistics

    def reset_peak(self) -> None:
        self._peaks_from = len(self._builder.build().events)
        self._asked_at = (-1, {})


_LEVELS = ("allocated_bytes", "reserved_bytes", "active_bytes")


def _peaks_since(done: Replay, event: int) -> dict[str, int]:
    levels = (done.allocated, done.reserved, done.active)
    return {
        f"{kind}.all.peak": int(done.per_event(level)[max(event - 1, 0) :].max())
        for kind, level in zip(_LEVELS, levels, strict=True)
    }
