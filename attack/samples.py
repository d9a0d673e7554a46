"""Sound files to start from: small, so that many can be tried, and each with something that the others lack."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from memfit.ledger import Failure, Ledger
from memfit.ledger.journal import Journal
from memfit.ledger.schema import TABLES
from memfit.testing import ledger
from memfit.units import GIB, MIB

_STEP = (
    "step; enter forward .; enter forward layers.0; alloc 3MiB x on cuda:0; alloc 1MiB t on cuda:0; free t; exit; exit;"
    "enter backward; alloc 4MiB gradient layers.0.g on cuda:0; free x; exit; enter optimizer; alloc 600B tmp on cuda:0 stream 7;"
    "free tmp; exit; free layers.0.g;"
)


def ledgers() -> list[Ledger]:
    """A training run, a run on two devices, one that ran out of memory, one that was cut short, and one with nothing in it."""
    training = ledger("alloc 8MiB parameter layers.0.w on cuda:0; alloc 2KiB buffer b;" + 2 * _STEP)
    two = ledger(
        "alloc 2MiB a on cuda:0; alloc 3MiB b on cuda:1; alloc 5B c; resize a 4MiB stream 3; empty-cache on cuda:0; free b"
    )
    failure = Failure(
        message="CUDA out of memory", time_ns=9_000, device="cuda:0", op="aten::mm", needed_bytes=2 * GIB, free_bytes=30 * MIB
    )
    failed = replace(training, info=replace(training.info, failure=replace(failure, total_bytes=24 * GIB, reserved_bytes=40 * MIB)))
    several = replace(training, info=replace(training.info, world_size=8, rank=3, alloc_conf="expandable_segments:True"))
    cut_short = ledger("alloc 1MiB parameter w on cuda:0; step; enter forward .; alloc 3GiB huge on cuda:0")
    return [training, two, failed, several, cut_short, ledger("")]


def ledger_bytes(folder: Path) -> list[bytes]:
    found = []
    for run in ledgers():
        run.save(folder / "sample")
        found.append((folder / "sample").read_bytes())
    return found


def journal_bytes(folder: Path) -> list[bytes]:
    """Each run as the frames that a process that died would have left."""
    found = []
    for run in ledgers():
        journal = Journal(folder / "sample")
        words = {"strings": list(run.strings), "devices": [vars(device) for device in run.devices], "info": run.info.to_json()}
        journal.append({kind.NAME: getattr(run, kind.NAME) for kind in TABLES}, words)
        journal.append({}, {"strings": [], "devices": [], "info": run.info.to_json()})
        journal.close()
        found.append((folder / "sample").read_bytes())
    return found


_FRAMES = [
    {"filename": "/x/torch/nn.py", "line": 5, "name": "linear"},
    {"filename": "/home/me/train.py", "line": 33, "name": "step"},
]


def snapshots() -> list[dict[str, Any]]:
    """As PyTorch writes them: one that ran out of memory, and one with expandable segments and pools."""
    base = 0x7F00_0000_0000

    def entry(action: str, at: int, size: int, **more: Any) -> dict[str, Any]:
        return {
            "action": action,
            "addr": base + at * MIB,
            "size": size * MIB,
            "stream": 0,
            "time_us": at,
            "frames": _FRAMES,
            **more,
        }

    def segment(at: int, *blocks: tuple[int, str], **more: Any) -> dict[str, Any]:
        made = [{"size": n * MIB, "requested_size": n * MIB, "state": state, "frames": _FRAMES} for n, state in blocks]
        about = {"device": 0, "address": base + at * MIB, "total_size": sum(n for n, _ in blocks) * MIB, "stream": 0}
        return {**about, "segment_type": "large", "segment_pool_id": (0, 0), "blocks": made, **more}

    trace = [
        entry("segment_alloc", 0, 600),
        entry("alloc", 0, 600),
        entry("free_requested", 0, 600),
        entry("free_completed", 0, 600),
        entry("alloc", 0, 200),
        entry("alloc", 300, 200),
        {"action": "oom", "size": 300 * MIB, "device_free": 100 * MIB, "stream": 0, "frames": _FRAMES},
        entry("segment_alloc", 1000, 20),
        entry("alloc", 1000, 11),
        entry("free_requested", 1000, 11),
    ]
    blocks = [(200, "active_allocated"), (100, "inactive"), (200, "active_allocated"), (100, "inactive")]
    ran_out = {
        "segments": [segment(0, *blocks), segment(1000, (11, "active_pending_free"), (9, "inactive"))],
        "device_traces": [trace, []],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
    }
    pools = {
        "segments": [segment(0, (20, "active_allocated"), segment_pool_id=(0, 1), is_expandable=True)],
        "device_traces": [[entry("segment_map", 0, 20), entry("alloc", 0, 20, pool_id=(0, 1)), entry("segment_unmap", 20, 20)]],
        "allocator_settings": {"expandable_segments": True},
    }
    return [ran_out, pools]


def trace_columns() -> dict[str, np.ndarray]:
    """An allocator's log, as the arrays of an ``.npz``."""
    names = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom")
    rows = [
        (3, 0, 20),
        (0, 0, 3),
        (0, 4, 8),
        (1, 0, 3),
        (2, 0, 3),
        (0, 0, 2),
        (3, 100, 40),
        (0, 100, 40),
        (1, 100, 40),
        (2, 100, 40),
    ]
    rows += [(4, 100, 40), (5, 0, 900)]
    action, address, size = np.array(rows, dtype=np.int64).T
    return {
        "actions": np.array(names),
        "action": action.astype(np.uint8),
        "addr": 0x7F00_0000_0000 + address * MIB,
        "size": size * MIB,
        "stream": np.zeros(len(rows), dtype=np.int64),
        "peak_allocated": np.array(50 * MIB),
        "peak_reserved": np.array(60 * MIB),
    }


def npz_bytes(columns: dict[str, np.ndarray], *, packed: bool) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(file, **columns)
    return file.getvalue()


def pickle_bytes(value: Any, protocol: int = 4) -> bytes:
    return pickle.dumps(value, protocol)
