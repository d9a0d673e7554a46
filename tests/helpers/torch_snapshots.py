"""A snapshot as PyTorch writes it of a process that ran out of memory, from a few words."""

from __future__ import annotations

from typing import Any

from memfit.units import MIB

BASE = 0x7F00_0000_0000
TRAIN = [
    {"filename": "/usr/lib/python3/site-packages/torch/nn/functional.py", "line": 5, "name": "linear"},
    {"filename": "/home/me/train.py", "line": 33, "name": "step"},
    {"filename": "/home/me/train.py", "line": 90, "name": "main"},
]
LOAD = [{"filename": "??", "line": 0, "name": "at::empty"}, {"filename": "/home/me/data.py", "line": 7, "name": "load"}]


def entry(action: str, address: int, size: int, frames: Any = (), **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": BASE + address * MIB, "size": size * MIB, "stream": 0, "frames": list(frames), **more}


def block(size: int, state: str = "active_allocated", requested: int | None = None) -> dict[str, Any]:
    asked = 0 if state == "inactive" else (size if requested is None else requested) * MIB
    return {"size": size * MIB, "requested_size": asked, "state": state, "frames": []}


def segment(address: int, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    total = sum(known["size"] for known in blocks)
    return {
        "device": 0,
        "address": BASE + address * MIB,
        "total_size": total,
        "stream": 0,
        "segment_type": "large",
        "blocks": list(blocks),
        **more,
    }


OOM = {"action": "oom", "size": 300 * MIB, "device_free": 100 * MIB, "stream": 0, "frames": TRAIN}
TRACE = [
    entry("segment_alloc", 0, 600),
    entry("alloc", 0, 600, LOAD),
    entry("free_requested", 0, 600),
    entry("free_completed", 0, 600),
    entry("alloc", 0, 200, TRAIN),
    entry("alloc", 200, 100, LOAD),
    entry("alloc", 300, 200, TRAIN),
    entry("free_requested", 200, 100),
    entry("free_completed", 200, 100),
    OOM,
]
AT_THE_OOM: dict[str, Any] = {
    "segments": [segment(0, block(200), block(100, "inactive"), block(200), block(100, "inactive"))],
    "device_traces": [TRACE],
    "allocator_settings": {},
}
