"""Answers ``torch.cuda.memory_allocated()`` and similar functions during a prediction."""

from __future__ import annotations

from dataclasses import replace

import torch

from memfit.allocator import AllocatorSettings, Replay, parse_alloc_conf, replay, requests_from_ledger
from memfit.ledger import LedgerBuilder, RunInfo
from memfit.predict.clock import TimedBuilder
from memfit.record.sources.operators.recorder import Recorder
from memfit.torch_compat.memory_history import alloc_conf_of_environment


class LedgerMeter:
    """Replays the ledger so far through the allocator when statistics are requested."""

    def __init__(self, builder: TimedBuilder, recorder: Recorder, alloc_conf: str, torch_version: str, device: str) -> None:
        self._builder, self._recorder = builder, recorder
        self._torch_version = torch_version
        self.alloc_conf = alloc_conf
        """The allocator's settings, including those that the run itself has set."""
        self._settings = parse_alloc_conf(alloc_conf, torch_version)
        self._device = device
        self._peaks_from = 0
        self._counted_before: dict[str, int] = {}
        self._asked_at: tuple[int, dict[str, int]] = (-1, {})

    def used_on(self, tensor: torch.Tensor, stream: int) -> None:
        """Records a call of ``tensor.record_stream(stream)``. No effect for blocks of that stream."""
        for block in self._recorder.blocks_of_other_streams(tensor, stream):
            self._builder.used_on(block, stream)

    def settings(self) -> AllocatorSettings:
        """The current settings: those requested, or else those of the environment, and those that the run has set."""
        return self._settings if self.alloc_conf else parse_alloc_conf(alloc_conf_of_environment(), self._torch_version)

    def statistics(self) -> dict[str, int]:
        """As ``torch.cuda.memory_stats()``."""
        ledger = self._builder.build()
        if len(ledger.events) == self._asked_at[0]:
            return dict(self._asked_at[1])
        if any(device.name == self._device for device in ledger.devices):
            settings = replace(self._settings, per_process_memory_fraction=None)
            done = replay(requests_from_ledger(ledger, self._device), settings)
            statistics = done.memory_stats() | _peaks_since(done, self._peaks_from)
        else:
            statistics = _nothing_yet(self._torch_version, self._device)
        for name, before in self._counted_before.items():
            statistics[name] -= before
        self._asked_at = (len(ledger.events), statistics)
        return dict(statistics)

    def reset_peak(self) -> None:
        self._peaks_from = len(self._builder.build().events)
        self._asked_at = (-1, {})

    def reset_accumulated(self) -> None:
        self._counted_before = {}
        self._asked_at = (-1, {})
        self._counted_before = {name: value for name, value in self.statistics().items() if name.endswith((".allocated", ".freed"))}
        self._asked_at = (-1, {})

    def configure(self, settings: str) -> None:
        alloc_conf = ",".join(filter(None, (self.alloc_conf, settings)))
        self._settings = parse_alloc_conf(alloc_conf, self._torch_version)
        self.alloc_conf = alloc_conf
        self._asked_at = (-1, {})


_LEVELS = ("allocated_bytes", "reserved_bytes", "active_bytes")


def _peaks_since(done: Replay, event: int) -> dict[str, int]:
    levels = (done.allocated, done.reserved, done.active)
    return {
        f"{kind}.all.peak": int(done.per_event(level)[max(event - 1, 0) :].max())
        for kind, level in zip(_LEVELS, levels, strict=True)
    }


def _nothing_yet(torch_version: str, device: str) -> dict[str, int]:
    """The statistics of an unused allocator."""
    builder = LedgerBuilder(RunInfo(source="predicted"))
    builder.device(device)
    return replay(requests_from_ledger(builder.build(), device), parse_alloc_conf("", torch_version)).memory_stats()
