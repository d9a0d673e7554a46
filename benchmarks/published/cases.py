"""A row of a public table as something that memfit can predict."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

GIB = 2**30
OLDEST = "2.6+cu126"
"""Stands for all older ones."""
JUDGED_FROM = (2, 9)
"""Memory of rows with this torch or a newer one is judged; that of older ones is shown."""


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    gpu: str
    torch: str = ""
    """As the source says it."""
    num_gpus: int = 1
    kind: str = ""
    """A key of ``build.BUILDS``, ``model`` (by name), or ``script`` (``scripts.py``)."""
    words: Mapping[str, Any] = field(default_factory=dict)
    """What the kind needs."""
    units_per_step: float = 0.0
    """Tokens or images that one GPU is given in the timed step."""
    per_second: float = 0.0
    """Published: tokens or images a second of one GPU."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Published: ``allocated``, ``reserved``, or ``used`` as nvidia-smi says it."""
    fits: bool | None = None
    steps: int = 2
    torch_version: str = ""
    """Whose kernels are predicted; empty: the default. The oldest that memfit knows stands for older ones."""
    alloc_conf: str = ""
    interconnect: str = ""
    """Of its nodes, where the source says it; otherwise what such GPUs usually have."""
    source: str = ""
    why_not: str = ""
    time_note: str = ""
    """Why the published time is not judged: the card was slowed down, or the step is the host's."""
    memory_note: str = ""

    @property
    def key(self) -> str:
        """Of the prediction: rows that are the same run on the same card share it."""
        asked = [self.gpu, self.num_gpus, self.kind, self.words, self.steps, self.torch_version, self.alloc_conf]
        asked += [self.interconnect] if self.interconnect else []
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def is_recent(self) -> bool:
        """Its torch is one of those whose memory is judged."""
        found = re.match(r"(\d+)\.(\d+)", self.torch)
        return found is not None and (int(found[1]), int(found[2])) >= JUDGED_FROM

    @property
    def is_held_out(self) -> bool:
        """By its name: no rule was looked for in this half of the rows."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 1

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        return cls(**json.loads(text))
