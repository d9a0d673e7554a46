"""The statistics of ``torch.cuda.memory_stats()``, under its names."""

from __future__ import annotations

from typing import Final

import numpy as np

from memfit.allocator.changes import POOLS, Changes, History
from memfit.allocator.engine import Outcome, SegmentChange
from memfit.allocator.requests import Requests
from memfit.allocator.settings import AllocatorSettings
from memfit.ledger.schema import Array

_BY_POOL: Final = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)


def count_statistics(
    requests: Requests, settings: AllocatorSettings, outcome: Outcome, history: History, pool_of_list: Array
) -> dict[str, int]:
    """Everything that version of torch counts, from the start of the run to its end or to where it ran out of memory."""
    change = outcome.segment_log[:, 1]
    found = {
        "max_split_size": -1 if settings.max_split_bytes is None else settings.max_split_bytes,
        "num_alloc_retries": outcome.num_alloc_retries,
        "num_device_alloc": int(np.isin(change, (SegmentChange.ALLOC, SegmentChange.MAP)).sum()),
        "num_device_free": int(np.isin(change, (SegmentChange.FREE, SegmentChange.UNMAP)).sum()),
        "num_ooms": int(outcome.num_done < len(requests)),
        "num_sync_all_streams": outcome.num_sync_all_streams,
    }
    if settings.version >= (2, 12):
        found["num_oom_rejections"] = outcome.num_oom_rejections
    for name in _BY_POOL:
        for pool in POOLS:
            found |= _four_figures(f"{name}.{pool}", getattr(history, name).amounts(pool))
    for name in ("oversize_allocations", "oversize_segments"):
        found |= _four_figures(name, getattr(history, name).amount)
    if settings.version >= (2, 13):
        found |= _private_pools(requests, outcome, history.reserved_bytes, pool_of_list)
    return dict(sorted(found.items()))


def _four_figures(name: str, amounts: Array) -> dict[str, int]:
    return {
        f"{name}.current": int(amounts.sum()),
        f"{name}.peak": int(np.cumsum(amounts).max(initial=0)),
        f"{name}.allocated": int(amounts[amounts > 0].sum()),
        f"{name}.freed": -int(amounts[amounts < 0].sum()),
    }


def _private_pools(requests: Requests, outcome: Outcome, reserved: Changes, pool_of_list: Array) -> dict[str, int]:
    found: dict[str, int] = {}
    log = outcome.segment_log
    pool = pool_of_list[log[log[:, 1] <= SegmentChange.UNMAP, 2]]
    for number, pool_id in enumerate(requests.pool_ids[1:], start=1):
        own = reserved.only(pool == number)
        for part in POOLS:
            name = f"reserved_bytes_by_private_pools.{'_'.join(map(str, pool_id))}.{part}"
            found |= _four_figures(name, own.amounts(part))
    return found
