"""The bytes at the peak as a profile for speedscope: modules are the frames, bytes the weights.

The format is that of https://www.speedscope.app/file-format-schema.json: a list of stacks, the outermost frame first, and what each
weighs. The deepest frames are what a module's own bytes are, and the operator that made them.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from memfit import __version__
from memfit.analysis import find_peak
from memfit.ledger import Ledger
from memfit.views.escaping import printable
from memfit.views.exports.frames import BlockIndex

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
OUTSIDE = "outside all modules"

Stack = tuple[str, ...]


def write_stacks(ledger: Ledger) -> bytes:
    """One profile a device that was ever used, the one with the highest peak first."""
    facts, frames = BlockIndex(ledger.check()), _Frames()
    weighed = {device.name: _weigh(ledger, number, facts) for number, device in enumerate(ledger.devices)}
    ordered = sorted(weighed.items(), key=lambda item: -item[1].total())
    profiles = [_profile(f"{printable(name)} at its peak", stacks, frames) for name, stacks in ordered if stacks]
    return json.dumps(
        {
            "$schema": SCHEMA,
            "exporter": f"memfit {__version__}",
            "name": f"{printable(ledger.info.source)}, rank {ledger.info.rank} of {ledger.info.world_size}",
            "activeProfileIndex": 0,
            "shared": {"frames": [{"name": name} for name in frames.numbers]},
            "profiles": profiles,
        }
    ).encode()


class _Frames:
    """The number of each frame, in the order in which they are first needed."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))


def _weigh(ledger: Ledger, device: int, facts: BlockIndex) -> Counter[Stack]:
    """The bytes of each stack when the device was at its peak."""
    held = ledger.block_bytes_at(find_peak(ledger, device).event)
    live = np.flatnonzero((held > 0) & (ledger.blocks.device == device))
    weights: Counter[Stack] = Counter()
    for block, size in zip(live.tolist(), held[live].tolist(), strict=True):
        known = facts[block]
        weights[(*(known.modules[::-1] or (OUTSIDE,)), known.category, known.op)] += size
    return weights


def _profile(name: str, stacks: Counter[Stack], frames: _Frames) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": stacks.total(),
        "samples": [[frames.number(frame) for frame in stack] for stack in stacks],
        "weights": list(stacks.values()),
    }
