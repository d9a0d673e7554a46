"""A snapshot as ``torch.cuda.memory._dump_snapshot()`` writes it, of what CUDA's allocator makes of a ledger.

It is for https://pytorch.org/memory_viz and for anything else that reads snapshots, ``memfit fit`` among them. Facts that decide
how it is written, read in the page's own script (torch/utils/viz/MemoryViz.js, 2025):

- its unpickler knows protocols 2 to 4 and only plain containers, numbers and text;
- entries with a category are coloured by it, and then some entry must have the category ``unknown``, or the page fails;
- the state at any moment is found backwards from the segments at the end, so these must follow from the entries.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from memfit.allocator import BlockState, Replay, SegmentState, replay, requests_from_ledger
from memfit.allocator.log import AllocatorLog, write_log
from memfit.allocator.sources.entries import ACTIONS, ALLOC
from memfit.ledger import Category, Ledger
from memfit.views.exports.frames import BlockFacts, BlockIndex

PROTOCOL = 4
UNKNOWN = "unknown"
"""The category of what has none, as torch calls it."""

Plain = dict[str, Any]


def write_snapshot(ledger: Ledger) -> bytes:
    """Every GPU of the ledger, or its busiest device where it has none, served by the allocator it ran under."""
    return pickle.dumps(snapshot_of(ledger), PROTOCOL)


def snapshot_of(ledger: Ledger) -> Plain:
    facts = BlockIndex(ledger.check())
    traces: dict[int, list[Plain]] = {0: []}
    segments: list[Plain] = []
    for number, name in _number_gpus([device.name for device in ledger.devices]).items():
        done = replay(requests_from_ledger(ledger, name))
        log, stacks = write_log(done), _Stacks(done, facts)
        traces[number] = _entries(done, log, stacks)
        segments += [_segment(segment, number, stacks) for segment in log.segments]
    return {
        "segments": segments,
        "device_traces": [traces.get(number, []) for number in range(max(traces) + 1)],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ledger.info.alloc_conf},
    }


def _number_gpus(names: list[str]) -> dict[int, str | None]:
    """The GPUs by number; where there is none, number 0 is whatever device the allocator would choose."""
    found: dict[int, str | None] = {}
    for name in names:
        if name.startswith("cuda"):
            number = name.rpartition(":")[2]
            usable = number.isascii() and number.isdecimal() and len(number) < 4 and int(number) not in found
            found[int(number) if usable else max(found, default=-1) + 1] = name
    return found or {0: None}


class _Stacks:
    """The frames and categories of the allocator's blocks. A ledger's block has several of them when it is resized."""

    def __init__(self, done: Replay, facts: BlockIndex) -> None:
        requests = done.requests
        assert requests.ledger is not None
        subjects = requests.ledger.events.subject[requests.event].tolist()
        self._subject = dict(zip(requests.block.tolist(), subjects, strict=True))
        self._facts = facts
        self._known: dict[BlockFacts, list[Plain]] = {}

    def frames(self, block: int) -> list[Plain]:
        """One list for all blocks with the same facts, so that it is written once; an empty one for no block."""
        if block < 0:
            return []
        facts = self._facts[self._subject[block]]
        if facts not in self._known:
            self._known[facts] = _frames(facts)
        return self._known[facts]

    def category(self, block: int) -> str:
        label = self._facts[self._subject[block]].category
        return UNKNOWN if label == Category.OTHER.label else label


def _frames(facts: BlockFacts) -> list[Plain]:
    """The innermost first; the page shows each as ``filename:line:name``."""
    when = ("step", facts.step) if facts.step >= 0 else ("init", 0)
    frames = [("op", 0, facts.op)]
    frames += [("name", 0, facts.name)] if facts.name else []
    frames += [("module", 0, path) for path in facts.modules]
    frames += [(*when, facts.phase or "outside all phases"), ("category", 0, facts.category)]
    return [{"filename": filename, "line": line, "name": name} for filename, line, name in frames]


def _entries(done: Replay, log: AllocatorLog, stacks: _Stacks) -> list[Plain]:
    requests, entries = done.requests, log.entries
    assert requests.ledger is not None
    time_us = requests.ledger.events.time_ns[requests.event[log.request]] // 1000
    # What a request did to segments has the frames of the block that it was for, as in torch.
    about = np.where(log.block >= 0, log.block, requests.block[log.request])
    columns = (entries.action, entries.address, entries.size, entries.stream, time_us, about)
    return [
        {
            "action": ACTIONS[action],
            "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time,
            "frames": stacks.frames(block),
            "category": stacks.category(block) if action == ALLOC else UNKNOWN,
        }
        for action, address, size, stream, time, block in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _segment(segment: SegmentState, device: int, stacks: _Stacks) -> Plain:
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": sum(block.size for block in segment.blocks if block.state == "active_allocated"),
        "active_size": segment.active_bytes,
        "requested_size": sum(block.requested for block in segment.blocks),
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [_block(block, stacks) for block in segment.blocks],
    }


def _block(block: BlockState, stacks: _Stacks) -> Plain:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": block.state,
        "frames": stacks.frames(block.number),
    }
