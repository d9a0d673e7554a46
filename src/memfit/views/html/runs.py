"""A ledger with all that the page shows of it worked out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from memfit.allocator import Replay, Verdict, judge, recorded_settings, replay, requests_from_ledger, smallest_fit
from memfit.analysis import DeviceReport, Report, build_report
from memfit.errors import ConfigError
from memfit.hardware import Gpu, find_gpu, gpus, least_gpu
from memfit.ledger import Ledger
from memfit.ledger.schema import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One ledger on the page, by its main device."""

    label: str
    ledger: Ledger
    report: Report
    verdict: Verdict | None
    """``None`` where the device is no GPU and none was asked about."""
    gpu_was_named: bool
    """By the user or by the ledger; otherwise the verdict is about the smallest GPU on which it fits."""
    replayed: Replay | None
    """What the allocator did; ``None`` where there is no verdict."""
    note: str = ""
    """Why there is no verdict, if there ought to be one."""

    @property
    def device(self) -> DeviceReport:
        return self.report.devices[0]

    @property
    def device_number(self) -> int:
        return self.ledger.device_order[0]

    @property
    def ended_early(self) -> bool:
        """Is the ledger that of a run which ran out of memory, or was cut short?"""
        return bool(self.ledger.info.failure) or not self.ledger.info.complete

    @property
    def num_blocks_at_peak(self) -> int:
        held = self.ledger.block_bytes_at(self.device.peak.event)
        return int(np.count_nonzero(held[self.ledger.blocks.device == self.device_number]))

    @cached_property
    def reserved(self) -> Array | None:
        """What the allocator has reserved after each event."""
        return None if self.replayed is None else self.replayed.per_event(self.replayed.reserved)

    @cached_property
    def step_reserved(self) -> list[int] | None:
        """The most that was reserved in what precedes the first step, and in each step."""
        if self.reserved is None:
            return None
        bounds = [0, *self.ledger.step_starts.tolist(), len(self.reserved)]
        # What a step begins with counts as its own.
        return [int(self.reserved[max(first - 1, 0) : end].max(initial=0)) for first, end in pairwise(bounds)]


def study(label: str, ledger: Ledger, gpu: Gpu | None = None) -> Run:
    """Works out what the page shows of a ledger; the verdict is about ``gpu``, or the GPU that the ledger names."""
    report = build_report(ledger)
    if not report.devices or not report.devices[0].peak.size_bytes:
        raise ConfigError(f"{label} has no memory in it: nothing was allocated while it was recorded")
    device, known = report.devices[0].name, gpu or _gpu_of(ledger)
    verdict, replayed, note = None, None, ""
    if gpu is not None or ledger.devices[ledger.device_order[0]].is_cuda:
        try:
            verdict, replayed = _judge(ledger, device, known)
        except ConfigError as error:  # a version of torch whose allocator memfit does not know
            note = f"No verdict: {error}"
    return Run(
        label=label, ledger=ledger, report=report, verdict=verdict, gpu_was_named=known is not None, replayed=replayed, note=note
    )


def _gpu_of(ledger: Ledger) -> Gpu | None:
    try:
        return find_gpu(ledger.info.gpu)
    except ConfigError:
        return None


def _judge(ledger: Ledger, device: str, gpu: Gpu | None) -> tuple[Verdict, Replay]:
    requests = requests_from_ledger(ledger, device)
    settings = recorded_settings(requests)
    gpu = gpu or least_gpu(smallest_fit(requests, settings).capacity, *ledger.info.communicators) or gpus()[-1]
    return judge(requests, gpu, settings), replay(requests, settings)


def label_runs(names: list[str], ledgers: list[Ledger]) -> list[str]:
    """What to call each run: by its rank where they are the ranks of one job, otherwise by its name."""
    ranks, worlds = [ledger.info.rank for ledger in ledgers], {ledger.info.world_size for ledger in ledgers}
    if len(ledgers) > 1 and len(worlds) == 1 and len(np.unique(ranks)) == len(ranks):
        return [f"rank {rank}" for rank in ranks]
    return names
